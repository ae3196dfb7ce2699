"use strict";
// The page works without this script, which keeps the list up to date and adds keys. It
// writes text only. It does not change the shown proposal, except to say that it is gone.
(() => {
  const body = document.body, data = body.dataset;
  const by = id => document.getElementById(id);
  const rows = by("rows"), count = by("count"), live = by("live"), find = by("q");
  document.documentElement.classList.add("js");

  // left returns the remaining time as a text.
  function left(ms) {
    const s = Math.max(0, Math.round(ms / 1000));
    if (s < 60) return s + " s left";
    if (s < 3600) return Math.floor(s / 60) + " min " + String(s % 60).padStart(2, "0") + " s left";
    return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min left";
  }
  function clock() {
    const now = Date.now();
    for (const t of document.querySelectorAll("time[data-until]")) {
      const text = left(+t.dataset.until - now);
      if (t.textContent !== text) t.textContent = text;
    }
  }
  setInterval(clock, 1000);

  // The list.
  function element(name, cls, text) {
    const e = document.createElement(name);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  }
  function made(r) {
    const li = element("li", "row"), a = element("a"), title = element("span", "title"), line = element("span", "line"), what = element("span");
    li.dataset.id = r.id;
    a.href = r.href;
    title.append(element("bdi", "", r.title));
    if (r.warn) what.append(element("b", "chip warn", "look twice"), " ");
    what.append(r.kind + " · ", element("bdi", "", r.bottle));
    const t = element("time", "", r.left);
    t.dataset.until = r.until;
    line.append(what, " ", t);
    a.append(title, line);
    li.append(a);
    return li;
  }
  // take shows a new state of the list. The shown or focused row stays, marked as gone if
  // it is. New rows are added at their place, below.
  function take(now) {
    count.textContent = now.count;
    const there = new Map(Array.from(rows.children, li => [li.dataset.id, li]));
    const wanted = new Set(now.rows.map(r => r.id));
    const anchor = rows.querySelector("a:focus, a[aria-current]"), before = anchor ? anchor.getBoundingClientRect().top : 0;
    for (const [id, li] of there) {
      if (wanted.has(id)) continue;
      if (id === data.id || li.contains(document.activeElement)) li.classList.add("gone"); else li.remove();
    }
    for (const r of now.rows) if (!there.has(r.id)) rows.append(made(r));
    if (anchor) by("list").scrollTop += anchor.getBoundingClientRect().top - before;
    by("none").hidden = rows.children.length > 0;
    turn("earlier", "Earlier", now.earlier);
    turn("later", "Later", now.later);
    if (data.id && data.waits && now.gone) gone(now.gone, now.tone);
  }
  function turn(id, text, href) {
    let a = by(id);
    if (!href) { if (a) a.remove(); return; }
    if (!a) { a = element("a", "", text); a.id = id; if (id === "earlier") by("pages").prepend(a); else by("pages").append(a); }
    a.href = href;
  }
  // gone shows that the proposal can no longer be answered. The server would refuse an
  // answer too.
  function gone(text, tone) {
    data.waits = "";
    by("gonetext").textContent = text;
    by("gone").className = "banner " + tone;
    by("gone").hidden = false;
    const form = by("answer");
    if (form) for (const b of form.querySelectorAll("button")) b.disabled = true;
  }

  // Changes of the queue.
  let asking = false, due = false, version = data.version;
  async function ask() {
    if (asking) { due = true; return; }
    asking = true; due = false;
    try {
      const p = new URLSearchParams({ q: data.query, from: data.from, id: data.id });
      const answer = await fetch(data.base + "rows?" + p);
      if (!answer.ok) throw new Error(answer.status);
      const now = await answer.json();
      version = now.version;
      take(now);
    } catch (e) {
      mark(false);
    }
    asking = false;
    if (due) setTimeout(ask, 50);
  }
  function mark(on) {
    live.hidden = false;
    live.classList.toggle("off", !on);
    live.textContent = on ? "live" : "not live: has carboy ended?";
  }
  const events = new EventSource(data.base + "events");
  events.onopen = () => mark(true);
  events.onerror = () => mark(false);
  events.onmessage = e => { if (e.data !== version) ask(); };
  addEventListener("pagehide", () => events.close());
  addEventListener("pageshow", e => { if (e.persisted) location.reload(); });

  // Keys. None answers by itself: a and r go to a button, which Enter presses.
  const links = () => Array.from(rows.querySelectorAll("li:not(.gone) > a, a[aria-current]"));
  function step(by) {
    const all = links();
    if (!all.length) return null;
    let i = all.indexOf(document.activeElement);
    if (i < 0) i = all.findIndex(a => a.hasAttribute("aria-current")) ;
    if (i < 0) i = by > 0 ? -1 : all.length;
    return all[Math.min(Math.max(i + by, 0), all.length - 1)];
  }
  function go(a) { if (a) { a.focus({ preventScroll: true }); a.scrollIntoView({ block: "nearest" }); } }
  function open(by) {
    const all = links(), i = all.findIndex(a => a.hasAttribute("aria-current"));
    const a = all[i + by];
    if (a) a.click(); else if (i >= 0) { const t = document.getElementById(by > 0 ? "later" : "earlier"); if (t) t.click(); } else if (all.length) all[0].click();
  }
  const focus = id => { const e = by(id); if (e && !e.disabled) e.focus(); };
  const keys = {
    j: () => go(step(1)), k: () => go(step(-1)), ArrowDown: () => go(step(1)), ArrowUp: () => go(step(-1)),
    Home: () => go(links()[0]), End: () => go(links().pop()),
    n: () => open(1), p: () => open(-1),
    a: () => focus("approve"), r: () => focus("reject"), t: () => focus("note"),
    m: () => { const d = by("modify"); if (d) { d.open = true; focus("text"); } },
    "/": () => { find.focus(); find.select(); },
  };
  document.addEventListener("keydown", e => {
    if (e.ctrlKey || e.altKey || e.metaKey || e.isComposing) return;
    const typing = e.target.matches("input:not([type=checkbox]), textarea, select");
    if (e.key === "Escape" && typing) { e.target.blur(); return; }
    if (typing || !Object.hasOwn(keys, e.key)) return;
    if (e.key.startsWith("Arrow") && !rows.contains(e.target) && e.target !== body) return;
    if ((e.key === "Home" || e.key === "End") && !rows.contains(e.target)) return;
    e.preventDefault();
    keys[e.key]();
  });

  // A key pressed while the page was being drawn was meant for another page. A second
  // answer is never sent.
  const form = by("answer");
  let shown = performance.now(), sent = false;
  document.addEventListener("visibilitychange", () => { shown = performance.now(); });
  if (form) form.addEventListener("submit", e => {
    if (sent || performance.now() - shown < 250) { e.preventDefault(); return; }
    const sure = form.elements.sure, verdict = e.submitter && e.submitter.value;
    if (sure && !sure.checked && (verdict === "approved" || verdict === "modified")) {
      e.preventDefault();
      sure.focus();
      sure.setCustomValidity("Read the warning, then check this box.");
      sure.reportValidity();
      sure.addEventListener("change", () => sure.setCustomValidity(""), { once: true });
      return;
    }
    sent = true;
  });
})();
