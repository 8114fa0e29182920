// Shows the figures of one step beside a chart: by pointer, or by the arrow keys. The page is whole without it.
"use strict";
(() => {
  const wire = (chart) => {
    const held = document.getElementById(chart.dataset.values);
    const figure = chart.closest("figure");
    const tip = figure && figure.querySelector(".tip");
    const cursor = chart.querySelector(".cursor");
    if (!held || !tip || !cursor || chart.dataset.wired) return;
    chart.dataset.wired = "yes";
    const { unit, axis, names, lines } = JSON.parse(held.textContent);
    const left = Number(chart.dataset.left), right = Number(chart.dataset.right), count = Number(chart.dataset.count);
    const width = chart.viewBox.baseVal.width;
    const columns = chart.dataset.form === "columns";
    const plot = width - left - right;
    const place = (step) => left + (columns ? (plot * (step + 0.5)) / count : (plot * step) / Math.max(count - 1, 1));
    const step = (x) => (columns ? Math.floor(((x - left) / plot) * count) : Math.round(((x - left) / plot) * (count - 1)));
    let at = 0;
    const write = (value) => {
      if (unit === "$") return `$${value.toFixed(value >= 1 ? 2 : 4)}`;
      return unit === "%" ? `${value.toFixed(1)} %` : Math.round(value).toLocaleString("en");
    };
    const show = (wanted) => {
      at = Math.max(0, Math.min(count - 1, wanted));
      const x = place(at);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.setAttribute("visibility", "visible");
      const rows = lines.filter((line) => at < line.values.length).map((line) => `${line.name}: ${write(line.values[at])}`);
      tip.textContent = [`${axis} ${names[at] || at + 1}`, ...rows].join("\n");
      tip.classList.toggle("right", x <= width / 2);
    };
    const hide = () => {
      tip.textContent = "";
      cursor.setAttribute("visibility", "hidden");
    };
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * width;
      show(step(x));
    });
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };
      if (event.key in steps) {
        show(at + steps[event.key]);
        event.preventDefault();
      }
    });
  };
  const wireAll = () => document.querySelectorAll(".chart").forEach(wire);
  document.addEventListener("everthread:changed", wireAll);
  wireAll();
  document.documentElement.dataset.ready = "yes";
})();
