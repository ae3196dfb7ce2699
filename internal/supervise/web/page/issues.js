"use strict";
// The pages of issues work without this script. It loads the page again when the issues
// changed. While a person has something focused or selected, it shows a link instead.
(() => {
  const data = document.body.dataset, live = document.getElementById("live"), reload = document.getElementById("reload");
  document.documentElement.classList.add("js");
  function mark(on) {
    live.hidden = false;
    live.classList.toggle("off", !on);
    live.textContent = on ? "live" : "not live: has carboy ended?";
  }
  const busy = () => document.hidden || ![document.body, document.getElementById("content")].includes(document.activeElement) || !getSelection().isCollapsed;
  const events = new EventSource(data.base + "issues/events");
  events.onopen = () => mark(true);
  events.onerror = () => mark(false);
  events.onmessage = e => {
    if (e.data === data.version) return;
    if (busy()) reload.hidden = false; else location.reload();
  };
  reload.addEventListener("click", e => { e.preventDefault(); location.reload(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !reload.hidden && !busy()) location.reload(); });
  addEventListener("pagehide", () => events.close());
  addEventListener("pageshow", e => { if (e.persisted) location.reload(); });
})();
