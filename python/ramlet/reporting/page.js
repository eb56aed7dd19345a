"use strict";
(() => {
  const forms = {
    bytes(v) {
      const units = ["B", "kB", "MB", "GB", "TB"];
      let at = 0;
      while (Math.abs(v) >= 999.5 && at < 4) { v /= 1000; at++; }
      return v.toFixed(at === 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2) + " " + units[at];
    },
    short: (v) => v.toLocaleString("en", { maximumSignificantDigits: 4 }),
    number: (v) => v.toLocaleString("en", { maximumSignificantDigits: 4 }),
  };
  const arrange = () => {
    for (const svg of document.querySelectorAll(".plot svg")) {
      // The name stays for screen readers; as a tooltip it would cover the values.
      const title = svg.querySelector(":scope > title");
      if (title && svg.querySelector("polyline[data-name]")) { svg.setAttribute("aria-label", title.textContent); title.remove(); }
    }
  };
  const clear = () => document.querySelectorAll(".cross, .tip").forEach((each) => each.remove());
  document.addEventListener("pointermove", (event) => {
    clear();
    const plot = event.target.closest && event.target.closest(".plot");
    const svg = plot && plot.querySelector("svg");
    const lines = svg ? [...svg.querySelectorAll("polyline[data-name]")] : [];
    if (!lines.length) return;
    const box = plot.getBoundingClientRect(), at = 1000 * (event.clientX - box.left) / box.width;
    const { x0, x1, y0, y1, form, x } = svg.dataset;
    let found = null;
    const values = [];
    for (const line of lines) {
      let nearest = null;
      for (const point of line.points) if (!nearest || Math.abs(point.x - at) < Math.abs(nearest.x - at)) nearest = point;
      if (!nearest || Math.abs(nearest.x - at) > 60) continue;
      values.push(line.dataset.name + "  " + forms[form](+y1 - (nearest.y / 1000) * (y1 - y0)));
      if (!found || Math.abs(nearest.x - at) < Math.abs(found.x - at)) found = nearest;
    }
    if (!found) return;
    const where = +x0 + (found.x / 1000) * (x1 - x0);
    values.unshift(x ? x + " " + Math.round(where).toLocaleString("en") : where.toFixed(2) + " s");
    const cross = document.createElement("div"), tip = document.createElement("div");
    cross.className = "cross"; tip.className = "tip";
    cross.style.left = found.x / 10 + "%";
    tip.style[found.x > 500 ? "right" : "left"] = "calc(" + (found.x > 500 ? 100 - found.x / 10 : found.x / 10) + "% + 8px)";
    tip.textContent = values.join("\n");
    plot.append(cross, tip);
  });
  document.addEventListener("pointerleave", clear);
  window.ramletArrange = arrange;
  arrange();
})();
