// The live parts: the page is whole without it.
"use strict";
(() => {
  const root = document.documentElement;
  root.dataset.js = "yes";

  // Keys: / searches, g t and g o go to threads and overview, j and k walk the list.
  let waiting = "";
  const typing = (node) => node && (/^(input|textarea|select)$/i.test(node.tagName) || node.isContentEditable);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const go = (selector) => {
      const link = document.querySelector(selector);
      if (link) link.click();
    };
    if (event.key === "/") {
      const box = document.querySelector("input[type=search]");
      if (box) {
        box.focus();
        event.preventDefault();
      }
    } else if (waiting === "g" && event.key === "t") go("[data-key=threads]");
    else if (waiting === "g" && event.key === "o") go("[data-key=overview]");
    else if (event.key === "j" || event.key === "k") {
      const items = [...document.querySelectorAll("[data-item]")];
      const at = items.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
      const next = items[Math.max(0, Math.min(items.length - 1, at))];
      if (next) next.focus();
    }
    waiting = event.key === "g" ? "g" : "";
  });

  // Sliders say what they are set to.
  const outputs = () =>
    document.querySelectorAll("input[type=range]").forEach((slider) => {
      const output = document.querySelector(`output[for=${slider.id}]`);
      const say = () => {
        output.textContent = `${slider.value} %`;
      };
      if (output) {
        slider.addEventListener("input", say);
        say();
      }
    });
  outputs();

  // A change is asked for twice where it cannot be taken back by the same button.
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });

  // Live: the server says that something changed, the page is fetched again and its live parts are exchanged.
  const live = document.body.dataset.live;
  if (!live || !window.EventSource) return;
  let fetching = false, again = false;
  const refresh = async () => {
    if (fetching) {
      again = true;
      return;
    }
    fetching = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
      if (answer.ok) exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      // the next change tries again
    }
    fetching = false;
    if (again) {
      again = false;
      refresh();
    }
  };
  const exchange = (fresh) => {
    for (const old of document.querySelectorAll("[data-part]")) {
      const now = fresh.querySelector(`[data-part="${old.dataset.part}"]`);
      if (!now || now.innerHTML === old.innerHTML || old.contains(document.activeElement)) continue;
      const opened = new Set([...old.querySelectorAll("details[open][id]")].map((node) => node.id));
      old.replaceChildren(...document.importNode(now, true).childNodes);
      for (const node of old.querySelectorAll("details[id]")) if (opened.has(node.id)) node.open = true;
    }
    document.dispatchEvent(new Event("everthread:changed"));
    root.dataset.refreshed = String(Number(root.dataset.refreshed || 0) + 1);
  };
  const source = new EventSource(live);
  const state = document.querySelector(".live-state");
  const tell = (on) => {
    if (state) state.dataset.on = on ? "yes" : "no";
    if (state) state.textContent = on ? "live" : "not live";
  };
  source.addEventListener("open", () => tell(true));
  source.addEventListener("error", () => tell(false));
  source.addEventListener("changed", refresh);
  addEventListener("pagehide", () => source.close());
})();
