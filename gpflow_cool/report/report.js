"use strict";
/* What moves on the page. All texts come from the page's data and are set as text, never as HTML. */

const data = JSON.parse(document.getElementById("data").textContent);
const colors = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2",
  "#17becf", "#bcbd22", "#7f7f7f"];
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, parent = null, text = null) {
  const svg = ["svg", "g", "path", "circle", "line", "text", "rect", "title", "clipPath"];
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

function ticks(low, high, count = 5) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
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
  note.style.left = Math.min(event.pageX + 12, document.documentElement.clientWidth - 190) + "px";
  note.style.top = event.pageY + 12 + "px";
}

/* A chart with axes, that zooms with the wheel, moves with the pointer, and is itself again after a
   double click. draw(layer, sx, sy) puts things into it; nearest(x, y) may tell what is there. */
function chart(place, { x, y, xlabel, ylabel, title, draw, nearest, width = 420, height = 330 }) {
  place.replaceChildren();
  const box = { left: 62, right: width - 12, top: 28, bottom: height - 44 };
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart" }, place);
  const clip = "clip" + (chart.count = (chart.count || 0) + 1);
  const size = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
  make("rect", size, make("clipPath", { id: clip }, svg));
  const axes = make("g", {}, svg), layer = make("g", { "clip-path": `url(#${clip})` }, svg);
  make("text", { x: width / 2, y: 17, "text-anchor": "middle", class: "title" }, svg, title || "");
  make("text", { x: width / 2, y: height - 8, "text-anchor": "middle" }, svg, xlabel);
  make("text", { x: -(box.top + box.bottom) / 2, y: 13, transform: "rotate(-90)",
    "text-anchor": "middle" }, svg, ylabel);
  let view = { x: [...x], y: [...y] };
  const sx = (v) => box.left + ((v - view.x[0]) / (view.x[1] - view.x[0])) * size.width;
  const sy = (v) => box.bottom - ((v - view.y[0]) / (view.y[1] - view.y[0])) * size.height;
  function render() {
    axes.replaceChildren();
    layer.replaceChildren();
    make("rect", { ...size, class: "frame" }, axes);
    for (const v of ticks(...view.x)) {
      make("line", { x1: sx(v), x2: sx(v), y1: box.top, y2: box.bottom, class: "grid" }, axes);
      make("text", { x: sx(v), y: box.bottom + 14, "text-anchor": "middle" }, axes, number(v));
    }
    for (const v of ticks(...view.y)) {
      make("line", { x1: box.left, x2: box.right, y1: sy(v), y2: sy(v), class: "grid" }, axes);
      make("text", { x: box.left - 5, y: sy(v) + 4, "text-anchor": "end" }, axes, number(v));
    }
    draw(layer, sx, sy);
  }
  function at(event) {
    const frame = svg.getBoundingClientRect(), scale = width / frame.width;
    const px = (event.clientX - frame.left) * scale, py = (event.clientY - frame.top) * scale;
    return { px, py,
      vx: view.x[0] + ((px - box.left) / size.width) * (view.x[1] - view.x[0]),
      vy: view.y[0] + ((box.bottom - py) / size.height) * (view.y[1] - view.y[0]) };
  }
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { vx, vy } = at(event), factor = event.deltaY > 0 ? 1.2 : 1 / 1.2;
    view = { x: view.x.map((v) => vx + (v - vx) * factor), y: view.y.map((v) => vy + (v - vy) * factor) };
    render();
  }, { passive: false });
  let grabbed = null;
  svg.addEventListener("pointerdown", (event) => { grabbed = { ...at(event), view }; });
  svg.addEventListener("pointerup", () => { grabbed = null; });
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
  svg.addEventListener("dblclick", () => { view = { x: [...x], y: [...y] }; render(); });
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
  heads.forEach((head, column) => head.addEventListener("click", () => {
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
  }));
}
document.querySelectorAll("table").forEach(sortable);

/* Predicted against observed, each row left out in turn. */
function showScatter() {
  const place = document.getElementById("scatter");
  if (!place) return;
  const controls = make("div", {}, place), figure = make("div", { class: "figure" }, place);
  function show(t) {
    const { y, mean, std, row } = data.scatter[t];
    const both = extent([...y, ...mean]);
    const bars = y.length <= 500;
    chart(figure, {
      x: both, y: both, xlabel: "observed", ylabel: "predicted", title: data.targets[t],
      draw(layer, sx, sy) {
        make("path", { d: path([[both[0], both[0]], [both[1], both[1]]], sx, sy), class: "ideal" }, layer);
        y.forEach((v, n) => {
          if (bars) make("line", { x1: sx(v), x2: sx(v), y1: sy(mean[n] - 2 * std[n]),
            y2: sy(mean[n] + 2 * std[n]), class: "bar" }, layer);
          make("circle", { cx: sx(v), cy: sy(mean[n]), r: bars ? 3 : 1.8, fill: colors[t % 10] }, layer);
        });
      },
      nearest({ px, py }, sx, sy) {
        let best = null, distance = 144;
        y.forEach((v, n) => {
          const d2 = (sx(v) - px) ** 2 + (sy(mean[n]) - py) ** 2;
          if (d2 < distance) [best, distance] = [n, d2];
        });
        return best === null ? null : `row ${row[best]}: observed ${number(y[best])}, predicted `
          + `${number(mean[best])} ± ${number(2 * std[best])}`;
      },
    });
  }
  choose(controls, "target", data.targets.slice(0, data.scatter.length), 0, show);
  show(0);
}

/* How often intervals hold what they promise. */
function showCalibration() {
  const place = document.getElementById("calibration");
  if (!place) return;
  const { levels, curves, joint } = data.calibration;
  const lines = curves.map((curve, t) => ({ curve, name: data.targets[t], color: colors[t % 10] }));
  if (joint) lines.push({ curve: joint, name: "all targets together", color: "#111", wide: true });
  chart(place, {
    x: [0, 1], y: [0, 1], xlabel: "probability of the region", ylabel: "rows inside",
    title: "Calibration",
    draw(layer, sx, sy) {
      make("path", { d: path([[0, 0], [1, 1]], sx, sy), class: "ideal" }, layer);
      lines.forEach(({ curve, color, wide }) => make("path", { d: path(levels.map((p, i) => [p, curve[i]]),
        sx, sy), fill: "none", stroke: color, "stroke-width": wide ? 2.5 : 1.3 }, layer));
    },
    nearest({ vx, vy }) {
      const i = Math.max(0, Math.min(levels.length - 1, Math.round(vx * (levels.length - 1))));
      const line = lines.reduce((a, b) => (Math.abs(a.curve[i] - vy) <= Math.abs(b.curve[i] - vy) ? a : b));
      return `${line.name}: ${number(100 * line.curve[i])} % inside, ${number(100 * levels[i])} % expected`;
    },
  });
  const key = make("div", { class: "key" }, place);
  lines.slice(-13).forEach(({ name, color }) => {
    make("i", { style: `background:${color}` }, make("span", {}, key)).after(name);
  });
}

/* What if: sliders, predictions, the ellipse of two targets, slices. */
function showWhatIf() {
  const place = document.getElementById("what-if");
  if (!place || typeof data.model === "string") return;
  const predict = makePredictor(data.model);
  const x = data.inputs.map((input) => input.mean), T = data.targets.length;
  let pair = [0, Math.min(1, T - 1)], sliced = 0;
  const columns = make("div", { class: "columns" }, place);
  const sliders = make("div", { class: "sliders" }, columns), answers = make("div", {}, columns);
  const table = make("table", { id: "answers" }, make("div", { class: "scroll" }, answers));
  const head = make("tr", {}, make("thead", {}, table)), body = make("tbody", {}, table);
  ["target", "predicted", "± 2σ", ""].forEach((text) => make("th", {}, head, text));
  const shown = data.targets.slice(0, 60);
  const cells = shown.map((name, t) => {
    const row = make("tr", {}, body);
    make("td", {}, row, name);
    const [mean, spread, picture] = [0, 1, 2].map(() => make("td", {}, row));
    const svg = make("svg", { viewBox: "0 0 200 16", class: "band" }, picture);
    make("line", { x1: 0, x2: 200, y1: 8, y2: 8, class: "grid" }, svg);
    const band = make("rect", { y: 4, height: 8, fill: colors[t % 10], opacity: 0.35 }, svg);
    return { mean, spread, band, dot: make("circle", { cy: 8, r: 4, fill: colors[t % 10] }, svg) };
  });
  const ranges = data.ranges;
  function update() {
    const { mean, cov } = predict(x);
    cells.forEach(({ mean: m, spread, band, dot }, t) => {
      const two = 2 * Math.sqrt(cov[t][t]), [low, high] = ranges[t];
      const at = (v) => Math.max(0, Math.min(200, (200 * (v - low)) / (high - low)));
      m.textContent = number(mean[t]);
      m.dataset.value = mean[t];
      spread.textContent = number(two);
      spread.dataset.value = two;
      band.setAttribute("x", at(mean[t] - two));
      band.setAttribute("width", at(mean[t] + two) - at(mean[t] - two));
      dot.setAttribute("cx", at(mean[t]));
    });
    if (T > 1) showEllipse(mean, cov);
    showSlices();
  }
  data.inputs.forEach((input, d) => {
    const row = make("label", { class: "slider" }, sliders, input.name);
    const value = make("output", {}, row, number(x[d]));
    const slider = make("input", { type: "range", min: input.min, max: input.max, step: "any",
      value: x[d] }, row);
    if (input.min === input.max) slider.disabled = true;
    slider.addEventListener("input", () => {
      x[d] = Number(slider.value);
      value.textContent = number(x[d]);
      update();
    });
  });
  const ellipseControls = make("div", {}, answers), ellipse = make("div", { class: "figure" }, answers);
  function showEllipse(mean, cov) {
    const [t, u] = pair;
    const a = cov[t][t], b = cov[t][u], c = cov[u][u];
    const half = (a + c) / 2, root = Math.hypot((a - c) / 2, b), angle = Math.atan2(2 * b, a - c) / 2;
    const axes = [Math.sqrt(Math.max(half + root, 0)), Math.sqrt(Math.max(half - root, 0))];
    const curve = (level) => Array.from({ length: 73 }, (_, i) => {
      const p = (i * Math.PI) / 36, s = level * axes[0] * Math.cos(p), r = level * axes[1] * Math.sin(p);
      return [mean[t] + s * Math.cos(angle) - r * Math.sin(angle),
        mean[u] + s * Math.sin(angle) + r * Math.cos(angle)];
    });
    chart(ellipse, {
      x: ranges[t], y: ranges[u], xlabel: data.targets[t], ylabel: data.targets[u],
      title: `correlation ${number(b / Math.sqrt(a * c))}`, height: 300,
      draw(layer, sx, sy) {
        [1, 2].forEach((level) => make("path", { d: path(curve(level), sx, sy), fill: colors[0],
          "fill-opacity": 0.15, stroke: colors[0] }, layer));
        make("circle", { cx: sx(mean[t]), cy: sy(mean[u]), r: 3, fill: colors[0] }, layer);
      },
    });
  }
  const sliceControls = make("div", {}, place), slices = make("div", { class: "slices" }, place);
  function showSlices() {
    slices.replaceChildren();
    data.inputs.forEach((input, d) => {
      if (input.min === input.max || d >= 12) return;
      const points = Array.from({ length: 25 }, (_, i) => {
        const here = [...x];
        here[d] = input.min + ((input.max - input.min) * i) / 24;
        const { mean, cov } = predict(here);
        return [here[d], mean[sliced], 2 * Math.sqrt(cov[sliced][sliced])];
      });
      const upper = points.map(([v, m, s]) => [v, m + s]), lower = points.map(([v, m, s]) => [v, m - s]);
      chart(make("div", {}, slices), {
        x: [input.min, input.max], y: extent([...upper, ...lower].map(([, v]) => v).concat(ranges[sliced])),
        xlabel: input.name, ylabel: data.targets[sliced], width: 300, height: 220,
        draw(layer, sx, sy) {
          make("path", { d: path([...upper, ...[...lower].reverse()], sx, sy), fill: colors[sliced % 10],
            opacity: 0.2 }, layer);
          make("path", { d: path(points, sx, sy), fill: "none", stroke: colors[sliced % 10],
            "stroke-width": 2 }, layer);
          make("line", { x1: sx(x[d]), x2: sx(x[d]), y1: 0, y2: 400, class: "ideal" }, layer);
        },
        nearest({ vx }) {
          const [v, m, s] = points.reduce((a, b) => (Math.abs(a[0] - vx) <= Math.abs(b[0] - vx) ? a : b));
          return `${input.name} ${number(v)}: ${number(m)} ± ${number(s)}`;
        },
      });
    });
  }
  if (T > 1) {
    choose(ellipseControls, "ellipse of", shown, pair[0], (t) => { pair = [t, pair[1]]; update(); });
    choose(ellipseControls, "and", shown, pair[1], (t) => { pair = [pair[0], t]; update(); });
  }
  choose(sliceControls, "slices of", shown, 0, (t) => { sliced = t; showSlices(); });
  update();
}

/* Maps over two inputs. */
const palette = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function color(part) {
  const at = Math.max(0, Math.min(0.9999, part)) * (palette.length - 1), i = Math.floor(at);
  return palette[i].map((c, n) => Math.round(c + (palette[i + 1][n] - c) * (at - i)));
}

function showMaps() {
  const place = document.getElementById("maps");
  if (!place || !data.maps) return;
  const { x, y, mean, std } = data.maps, controls = make("div", {}, place);
  const figures = make("div", { class: "columns" }, place);
  const panels = [["mean", mean], ["deviation", std]].map(([what, values]) => {
    const figure = make("figure", {}, figures), caption = make("figcaption", {}, figure);
    const canvas = make("canvas", { width: x.length, height: y.length, class: "map" }, figure);
    return { what, values, caption, canvas };
  });
  function show(t) {
    panels.forEach(({ what, values, caption, canvas }) => {
      const cells = values[t];
      let low = Infinity, high = -Infinity;
      cells.forEach((v) => { low = Math.min(low, v); high = Math.max(high, v); });
      caption.textContent = `${data.targets[t]}, ${what}: ${number(low)} (dark) to ${number(high)} (light)`;
      const context = canvas.getContext("2d"), image = context.createImageData(x.length, y.length);
      cells.forEach((v, n) => {
        const row = y.length - 1 - Math.floor(n / x.length), place = 4 * (row * x.length + (n % x.length));
        image.data.set([...color((v - low) / (high - low || 1)), 255], place);
      });
      context.putImageData(image, 0, 0);
      const cell = 400 / Math.max(x.length, y.length);
      canvas.style.width = cell * x.length + "px";
      canvas.style.height = cell * y.length + "px";
      canvas.onpointerleave = (event) => tell(event, null);
      canvas.onpointermove = (event) => {
        const frame = canvas.getBoundingClientRect();
        const i = Math.floor(((event.clientX - frame.left) / frame.width) * x.length);
        const j = y.length - 1 - Math.floor(((event.clientY - frame.top) / frame.height) * y.length);
        if (i < 0 || j < 0 || i >= x.length || j >= y.length) return;
        tell(event, `${data.inputs[0].name} ${number(x[i])}, ${data.inputs[1].name} ${number(y[j])}: `
          + number(cells[j * x.length + i]));
      };
    });
  }
  choose(controls, "target", data.targets.slice(0, mean.length), 0, show);
  show(0);
}

showScatter();
showCalibration();
showWhatIf();
showMaps();
