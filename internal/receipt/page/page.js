"use strict";
// The page works without this. With it the timeline zooms, the tree folds, and
// everything can be filtered. It only ever reads and writes text and numbers.
(() => {
  const one = (q, e) => (e || document).querySelector(q);
  const all = (q, e) => Array.from((e || document).querySelectorAll(q));
  document.documentElement.classList.add("js");

  const table = one("#tree"), filter = one("#filter"), matches = one("#matches"), tip = one("#tip");
  one("#tools").hidden = false;

  // The tree.
  const rows = [];
  const stack = [];
  for (const el of table ? all("tbody tr", table) : []) {
    const row = { el, level: +el.dataset.level, kids: [], up: null, open: "open" in el.dataset, text: "", hit: false, svg: one("svg", el), shown: true };
    while (stack.length && stack[stack.length - 1].level >= row.level) stack.pop();
    if (stack.length) { row.up = stack[stack.length - 1]; row.up.kids.push(row); }
    stack.push(row);
    rows.push(row);
    el.setAttribute("aria-level", row.level);
    el.tabIndex = -1;
    one("summary", el).tabIndex = -1;
    for (const cell of el.cells) cell.setAttribute("role", "gridcell");
  }
  const rowOf = new Map(rows.map(r => [r.el, r]));
  for (const row of rows) {
    if (!row.kids.length) continue;
    const b = document.createElement("button");
    b.type = "button"; b.className = "twist"; b.tabIndex = -1;
    b.setAttribute("aria-hidden", "true");
    b.addEventListener("click", () => { row.open = !row.open; layout(); });
    row.el.cells[0].prepend(b);
  }

  let words = "", failed = false, focused = null;
  const text = row => row.text || (row.text = (row.el.cells[0].textContent + " " + row.el.cells[3].textContent).toLowerCase());

  // layout decides which rows are shown. With a filter those that match are,
  // with what is above them; else those whose parents are open.
  function layout() {
    const active = words !== "" || failed;
    let hits = 0;
    for (let i = rows.length - 1; i >= 0; i--) {
      const r = rows[i];
      r.hit = active && (!failed || r.el.classList.contains("bad") || r.el.classList.contains("warn")) && (words === "" || text(r).includes(words));
      r.near = r.hit || r.kids.some(k => k.near);
      if (r.hit) hits++;
    }
    for (const r of rows) {
      r.shown = active ? r.near : !r.up || (r.up.shown && r.up.open);
      r.el.hidden = !r.shown;
      r.el.classList.toggle("dim", active && r.shown && !r.hit);
      if (r.kids.length) r.el.setAttribute("aria-expanded", String(active ? r.near : r.open));
    }
    if (!focused || !focused.shown) roving(rows.find(r => r.shown) || null);
    redraw();
    return hits;
  }

  function roving(row) {
    if (focused) { focused.el.tabIndex = -1; focused.el.classList.remove("at"); }
    focused = row;
    if (row) row.el.tabIndex = 0;
  }
  function go(row) {
    if (!row) return;
    roving(row);
    row.el.classList.add("at");
    row.el.focus();
  }

  // The filter is for the tree and all tables.
  const lines = all(".list tbody tr").map(el => ({ el, text: "" }));
  const folds = all(".fold").map(el => ({ el, open: el.open }));
  function search() {
    words = filter.value.trim().toLowerCase();
    let hits = layout();
    for (const l of lines) {
      if (!l.text) l.text = l.el.textContent.toLowerCase();
      const hit = words === "" || l.text.includes(words);
      l.el.hidden = !hit;
      if (words !== "" && hit) hits++;
    }
    for (const f of folds) f.el.open = words !== "" ? !!one("tbody tr:not([hidden])", f.el) : f.open;
    matches.value = words || failed ? hits + (hits === 1 ? " match" : " matches") : "";
  }
  filter.addEventListener("input", search);
  document.addEventListener("keydown", e => {
    if (e.key === "/" && e.target !== filter) { e.preventDefault(); filter.focus(); }
    if (e.key === "Escape") {
      tip.hidden = true;
      if (e.target === filter && filter.value) { filter.value = ""; search(); }
    }
  });
  if (!table) return;

  // Time. from and to are microseconds of the run; a unit of the drawing is
  // worth some of them.
  const total = +table.dataset.total / 1000, unitOf = table.dataset.grid / total, axis = one("#axis"), overview = one("#overview"), frame = one("#window");
  const bins = overview.viewBox.baseVal.width;
  let from = 0, to = total, drawing = false;
  function show(a, b) {
    const span = Math.min(Math.max(b - a, total / 1e5), total);
    from = Math.min(Math.max(a, 0), total - span);
    to = from + span;
    redraw();
  }
  function zoom(by, at) {
    const mid = at === undefined ? (from + to) / 2 : at;
    show(mid - (mid - from) * by, mid + (to - mid) * by);
  }
  const pan = by => show(from + (to - from) * by, to + (to - from) * by);

  function redraw() {
    if (drawing || !table) return;
    drawing = true;
    requestAnimationFrame(() => { drawing = false; draw(); });
  }
  const units = [[60e6, " min"], [1e6, " s"], [1e3, " ms"], [1, " µs"]];
  function draw() {
    const span = to - from, box = from * unitOf + " 0 " + span * unitOf + " 10";
    for (const r of rows) if (r.shown) r.svg.setAttribute("viewBox", box);
    frame.setAttribute("x", from / total * bins);
    frame.setAttribute("width", span / total * bins);
    frame.classList.toggle("part", span < total);
    const wide = axis.clientWidth || 1;
    let step = Math.pow(10, Math.floor(Math.log10(span * 90 / wide)));
    for (const m of [1, 2, 5, 10]) if (step * m * wide / span >= 80) { step *= m; break; }
    step = Math.max(step, 1);
    const unit = units.find(u => step >= u[0]) || units[3];
    const ticks = [];
    for (let t = Math.ceil(from / step) * step; t < to && ticks.length < 100; t += step) {
      const i = document.createElement("i");
      i.textContent = +(t / unit[0]).toFixed(3) + unit[1];
      i.style.left = (t - from) / span * 100 + "%";
      ticks.push(i);
    }
    axis.replaceChildren(...ticks);
    table.style.setProperty("--step", step / span * wide + "px");
    table.style.setProperty("--from", (Math.ceil(from / step) * step - from) / span * wide + "px");
  }
  new ResizeObserver(redraw).observe(axis);

  // The pointer: drag a track to move, the overview to choose, wheel to zoom.
  const fraction = (e, el) => { const b = el.getBoundingClientRect(); return Math.min(Math.max((e.clientX - b.left) / b.width, 0), 1); };
  let drag = null;
  table.addEventListener("pointerdown", e => {
    if (e.button !== 0) return;
    const track = e.target.closest(".track");
    if (!track && !overview.contains(e.target)) return;
    drag = track ? { el: track, x: e.clientX, from, to } : { el: overview, at: fraction(e, overview) * total };
    drag.el.setPointerCapture(e.pointerId);
    e.preventDefault();
  });
  table.addEventListener("pointermove", e => {
    if (!drag) return;
    if (drag.el === overview) {
      const at = fraction(e, overview) * total;
      show(Math.min(at, drag.at), Math.max(at, drag.at));
    } else {
      const by = (drag.x - e.clientX) / drag.el.clientWidth * (drag.to - drag.from);
      show(drag.from + by, drag.to + by);
    }
  });
  for (const end of ["pointerup", "pointercancel"]) table.addEventListener(end, e => {
    if (drag && drag.el === overview && Math.abs(fraction(e, overview) * total - drag.at) < total / 200) {
      const half = (to - from) / 2;
      show(drag.at - half, drag.at + half);
    }
    drag = null;
  });
  table.addEventListener("dblclick", e => {
    const r = e.target.closest("rect[data-text]");
    if (!r) return;
    const x = r.x.baseVal.value / unitOf, w = Math.max(r.width.baseVal.value / unitOf, total / 1e5);
    show(x - w * .1, x + w * 1.1);
  });
  table.addEventListener("wheel", e => {
    const el = e.target.closest(".track") || (overview.contains(e.target) ? overview : null);
    if (!el) return;
    if (e.ctrlKey || e.metaKey) {
      e.preventDefault();
      const whole = el === overview;
      zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 200))), whole ? fraction(e, el) * total : from + fraction(e, el) * (to - from));
    } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      e.preventDefault();
      pan((e.deltaX || e.deltaY) / 1000);
    }
  }, { passive: false });

  // The tip says what a bar is.
  function tell(row, rect, x, y) {
    const put = (tag, s) => { const d = document.createElement("div"), i = document.createElement(tag); i.textContent = s; i.dir = "ltr"; d.append(i); tip.append(d); };
    const cut = s => s.length > 300 ? s.slice(0, 300) + "…" : s;
    tip.replaceChildren();
    put("b", cut(one("summary", row.el).textContent));
    put("span", rect ? rect.dataset.text : row.el.cells[1].textContent + ", took " + row.el.cells[2].textContent + ", " + row.el.cells[3].textContent);
    for (const d of all(".more dl div", row.el)) put("code", cut(d.textContent.replace(d.firstChild.textContent, d.firstChild.textContent + " ")));
    tip.hidden = false;
    const b = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x, innerWidth - b.width - 4)) + "px";
    tip.style.top = (y + b.height + 24 > innerHeight ? Math.max(4, y - b.height - 12) : y + 16) + "px";
  }
  table.addEventListener("pointermove", e => {
    const track = e.target.closest(".track");
    if (!track || drag || e.pointerType === "touch") { tip.hidden = true; return; }
    const row = rowOf.get(track.closest("tr"));
    const rect = e.target.closest("rect");
    if (rect) tell(row, rect, e.clientX, e.clientY); else tip.hidden = true;
  });
  table.addEventListener("pointerleave", () => { tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // The keyboard.
  table.setAttribute("role", "treegrid");
  table.addEventListener("focusin", e => {
    const row = rowOf.get(e.target);
    if (!row) return;
    roving(row);
    if (row.el.matches(":focus-visible")) {
      const b = row.svg.getBoundingClientRect();
      tell(row, null, b.left, b.bottom);
    }
  });
  table.addEventListener("focusout", e => { tip.hidden = true; const row = rowOf.get(e.target); if (row) row.el.classList.remove("at"); });
  table.addEventListener("keydown", e => {
    const row = rowOf.get(e.target);
    if (!row || e.ctrlKey || e.metaKey || e.altKey) return;
    const shown = rows.filter(r => r.shown), i = shown.indexOf(row);
    const keys = {
      ArrowDown: () => go(shown[i + 1]), ArrowUp: () => go(shown[i - 1]),
      Home: () => go(shown[0]), End: () => go(shown[shown.length - 1]),
      PageDown: () => go(shown[Math.min(i + 10, shown.length - 1)]), PageUp: () => go(shown[Math.max(i - 10, 0)]),
      ArrowRight: () => { if (!row.kids.length) return; if (!row.open) { row.open = true; layout(); } else go(row.kids.find(k => k.shown)); },
      ArrowLeft: () => { if (row.kids.length && row.open && !words) { row.open = false; layout(); } else go(row.up); },
      Enter: () => { const d = one("details", row.el); d.open = !d.open; tip.hidden = true; }, " ": () => keys.Enter(),
      "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": () => show(0, total), ",": () => pan(-.25), ".": () => pan(.25),
    };
    if (Object.hasOwn(keys, e.key)) { e.preventDefault(); keys[e.key](); }
  });

  one("#buttons").hidden = one("#help").hidden = false;
  const click = (id, f) => one(id).addEventListener("click", f);
  click("#in", () => zoom(.5));
  click("#out", () => zoom(2));
  click("#fit", () => show(0, total));
  click("#open", () => { for (const r of rows) r.open = true; layout(); });
  click("#shut", () => { for (const r of rows) r.open = false; layout(); });
  click("#bad", e => { failed = !failed; e.target.setAttribute("aria-pressed", String(failed)); search(); });
  layout();
})();
