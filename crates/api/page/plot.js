// Plots of the last minute.

import { el, setText, svg } from "./dom.js";
import { SAMPLES } from "./poll.js";

// A path through the values, with a gap where one is unknown. The last value is at the right edge.
function path(values, max, width, height) {
  const step = width / (SAMPLES - 1);
  const first = SAMPLES - values.length;
  let line = "", pen = "M";
  values.forEach((value, index) => {
    if (value == null) { pen = "M"; return; }
    const x = (first + index) * step, y = height - 1 - (max > 0 ? value / max : 0) * (height - 2);
    line += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    // A line of one point is visible, too.
    if (pen === "M") line += "h.1";
    pen = "L";
  });
  return line;
}

const highest = (values) => Math.max(0, ...values.filter((value) => value != null));

// A small plot without axes, up to `top` or the highest value. `name` and `words` describe it to those who do not see it.
export function sparkline(name, words, top) {
  const line = svg("path", { class: "line one" });
  const node = svg("svg", { class: "spark", viewBox: "0 0 120 24", role: "img", preserveAspectRatio: "none" }, line);
  return { node, update(values) {
    line.setAttribute("d", path(values, top ?? highest(values), 120, 24));
    node.setAttribute("aria-label", `${name}: ${words(values.at(-1)) || "nothing"}, at most ${words(highest(values))}`);
  } };
}

// A plot of one or two series: [name, function of a sample]. `words` writes a value.
export function plot(title, series, words) {
  const lines = series.map((_, index) => svg("path", { class: `line ${index ? "two" : "one"}` }));
  const values = series.map(() => el("b"));
  const top = el("span"), legend = series.map(([name], index) =>
    el("span", { class: `key ${index ? "two" : "one"}` }, `${name} `, values[index]));
  const chart = svg("svg", { viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img" },
    svg("path", { class: "grid", d: "M0 1H600M0 50H600M0 99H600" }), lines);
  const node = el("figure", { class: "plot" },
    el("figcaption", {}, el("span", { class: "title" }, title), el("span", { class: "keys" }, legend)),
    el("div", { class: "chart" }, top, chart),
    el("div", { class: "axis", "aria-hidden": "true" }, el("span", {}, "60 s ago"), el("span", {}, "now")));
  return { node, update(samples) {
    const all = series.map(([, value]) => samples.map(value));
    const max = highest(all.flat());
    setText(top, words(max));
    const now = all.map((own) => words(own.at(-1)) || "–");
    all.forEach((own, index) => {
      lines[index].setAttribute("d", path(own, max, 600, 100));
      setText(values[index], now[index]);
    });
    chart.setAttribute("aria-label", `${title}: ${series.map(([name], index) => `${name} ${now[index]}`).join(", ")}; at most ${words(max)}`);
  } };
}
