"use strict";
/* Elements, numbers, charts and tables. All texts are set as text, never as HTML. */

const colors = ["#2563a8", "#d9822b", "#2f9e67", "#c2463f", "#7a5cc0", "#8a6244", "#c45aa5",
  "#1795a8", "#8f8f1f", "#6b7280"];
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, parent = null, text = null) {
  const svg = ["svg", "g", "path", "circle", "line", "text", "rect", "title", "clipPath", "image"];
  const element = svg.includes(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function number(value) {
  if (value === null || Number.isNaN(value)) return "–";
  const text = String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

/* Days since 1970 as a date, with the time if there is one. */
function date(days) {
  const text = new Date(Math.round(days * 1440) * 60000).toISOString();
  return text.slice(11, 16) === "00:00" ? text.slice(0, 10) : text.slice(0, 16).replace("T", " ");
}

function day(days) { return date(Math.round(days)); }

function niceStep(raw, steps) {
  const power = 10 ** Math.floor(Math.log10(raw));
  return steps.map((m) => m * power).find((s) => s >= raw * 0.999) || raw;
}

function ticks(low, high, count = 5) {
  const step = niceStep((high - low) / count, [1, 2, 5, 10]), found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found.map((v) => ({ at: v, text: number(v) }));
}

/* Days, or the first days of months or years. */
function dateTicks(low, high, count = 4) {
  const months = (high - low) / 30.44 / count, found = [];
  if (months < 0.5) {
    const step = Math.max(1, Math.ceil((high - low) / count));
    for (let d = Math.ceil(low); d <= high; d += step) found.push({ at: d, text: day(d) });
    return found;
  }
  const step = months > 9 ? 12 * Math.max(1, Math.round(niceStep(months / 12, [1, 2, 5, 10])))
    : [1, 2, 3, 6, 12].find((m) => m >= months * 0.8);
  const start = new Date(low * 864e5), year = start.getUTCFullYear();
  for (let m = Math.floor(start.getUTCMonth() / step) * step; ; m += step) {
    const at = Date.UTC(step >= 12 ? Math.ceil(year / (step / 12)) * (step / 12) : year, m, 1) / 864e5;
    if (at > high) return found;
    if (at >= low) found.push({ at, text: step >= 12 ? day(at).slice(0, 4) : day(at).slice(0, 7) });
  }
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low === Infinity) return [0, 1];
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - margin, high + margin];
}

/* One note for all charts, next to the pointer. */
const note = make("div", { class: "tip", hidden: "" }, document.body);
function tell(event, text) {
  note.hidden = text === null;
  if (text === null) return;
  note.textContent = text;
  const room = document.documentElement.clientWidth - note.offsetWidth - 8;
  note.style.left = Math.max(8, Math.min(event.pageX + 12, room)) + "px";
  note.style.top = event.pageY + 14 + "px";
}

/* A chart with axes. draw(layer, sx, sy) puts things into it; nearest(here, sx, sy) may tell what is
   there. After a click into it, the wheel zooms; it moves with the pointer, and is itself again after
   a double click. With `fixed`, it does neither. */
function chart(place, { x, y, xlabel, ylabel, title, draw, nearest, width = 460, height = 340,
  xticks = ticks, yticks = ticks, fixed = false, slanted = false }) {
  place.replaceChildren();
  const box = { left: 58, right: width - 12, top: title ? 30 : 12, bottom: height - (slanted ? 84 : 42) };
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img",
    "aria-label": [title, `${ylabel} against ${xlabel}`].filter(Boolean).join(": ") }, place);
  if (!fixed) svg.setAttribute("tabindex", "0");
  const clip = "clip" + (chart.count = (chart.count || 0) + 1);
  const size = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
  make("rect", size, make("clipPath", { id: clip }, svg));
  const axes = make("g", {}, svg), layer = make("g", { "clip-path": `url(#${clip})` }, svg);
  const middle = (box.left + box.right) / 2;
  make("text", { x: middle, y: 18, "text-anchor": "middle", class: "title" }, svg, title || "");
  make("text", { x: middle, y: height - 6, "text-anchor": "middle", class: "label" }, svg, xlabel);
  make("text", { x: -(box.top + box.bottom) / 2, y: 13, transform: "rotate(-90)",
    "text-anchor": "middle", class: "label" }, svg, ylabel);
  let view = { x: [...x], y: [...y] };
  const sx = (v) => box.left + ((v - view.x[0]) / (view.x[1] - view.x[0])) * size.width;
  const sy = (v) => box.bottom - ((v - view.y[0]) / (view.y[1] - view.y[0])) * size.height;
  function render() {
    axes.replaceChildren();
    layer.replaceChildren();
    for (const { at, text } of xticks(...view.x)) {
      make("line", { x1: sx(at), x2: sx(at), y1: box.top, y2: box.bottom, class: "grid" }, axes);
      const turned = { "text-anchor": "end", transform: `rotate(-35 ${sx(at) + 4} ${box.bottom + 14})` };
      make("text", { x: sx(at) + (slanted ? 4 : 0), y: box.bottom + (slanted ? 14 : 15),
        ...(slanted ? turned : { "text-anchor": "middle" }) }, axes, text);
    }
    for (const { at, text } of yticks(...view.y)) {
      make("line", { x1: box.left, x2: box.right, y1: sy(at), y2: sy(at), class: "grid" }, axes);
      make("text", { x: box.left - 6, y: sy(at) + 4, "text-anchor": "end" }, axes, text);
    }
    make("rect", { ...size, class: "frame" }, axes);
    draw(layer, sx, sy);
  }
  function at(event) {
    const frame = svg.getBoundingClientRect(), scale = width / frame.width;
    const px = (event.clientX - frame.left) * scale, py = (event.clientY - frame.top) * scale;
    return { px, py,
      vx: view.x[0] + ((px - box.left) / size.width) * (view.x[1] - view.x[0]),
      vy: view.y[0] + ((box.bottom - py) / size.height) * (view.y[1] - view.y[0]) };
  }
  let grabbed = null;
  if (!fixed) {
    svg.addEventListener("wheel", (event) => {
      if (document.activeElement !== svg) return;
      event.preventDefault();
      const { vx, vy } = at(event), factor = event.deltaY > 0 ? 1.2 : 1 / 1.2;
      view = { x: view.x.map((v) => vx + (v - vx) * factor), y: view.y.map((v) => vy + (v - vy) * factor) };
      render();
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => { svg.focus(); grabbed = { ...at(event), view }; });
    svg.addEventListener("pointerup", () => { grabbed = null; });
    svg.addEventListener("dblclick", () => { view = { x: [...x], y: [...y] }; render(); });
  }
  svg.addEventListener("pointerleave", (event) => { grabbed = null; tell(event, null); });
  svg.addEventListener("pointermove", (event) => {
    const here = at(event);
    if (grabbed && event.buttons) {
      const dx = ((grabbed.px - here.px) / size.width) * (grabbed.view.x[1] - grabbed.view.x[0]);
      const dy = ((here.py - grabbed.py) / size.height) * (grabbed.view.y[1] - grabbed.view.y[0]);
      view = { x: grabbed.view.x.map((v) => v + dx), y: grabbed.view.y.map((v) => v + dy) };
      render();
    } else if (nearest) tell(event, nearest(here, sx, sy));
  });
  render();
}

function path(points, sx, sy) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${sx(x).toFixed(2)},${sy(y).toFixed(2)}`).join("");
}

function choose(place, label, names, selected, changed) {
  const box = make("label", { class: "choice" }, place, label + " ");
  const select = make("select", {}, box);
  names.forEach((name, i) => make("option", { value: i }, select, name));
  select.value = selected;
  select.addEventListener("change", () => changed(Number(select.value)));
  return select;
}

/* Tables: a click on a head sorts by that column. */
function cellValue(text) {
  const plain = text.replace("−", "-").replace("%", "").replace(/,/g, "");
  return plain === "" || Number.isNaN(Number(plain)) ? text : Number(plain);
}

function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.setAttribute("tabindex", "0");
    head.setAttribute("title", "sort by this column");
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [cellValue(row.cells[column].textContent), row]);
      rows.sort(([a], [b]) => {
        const both = typeof a === "number" && typeof b === "number";
        const order = both ? a - b : String(a).localeCompare(String(b));
        return up ? order : -order;
      });
      body.append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
