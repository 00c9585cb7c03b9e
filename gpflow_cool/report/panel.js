"use strict";
/* What if: inputs to move, predictions that follow, the ellipse of two targets, slices. */

/* The value of an input as people write it. */
const shownAs = {
  number, category: String,
  date: (v) => date(v), duration: (v) => `${number(v)} days`,
};

/* A control for one column of the table. x holds the inputs that the model sees. */
function makeControl(place, control, x, changed) {
  const row = make("div", { class: "control" }, place), { first, kind } = control;
  const id = "input" + first;
  make("label", { for: id, class: "name" }, row, control.name);
  if (kind === "category") {
    const select = make("select", { id }, row);
    control.categories.forEach((name, i) => make("option", { value: i }, select, name));
    const set = (i) => {
      control.categories.forEach((_, j) => { x[first + j] = Number(i === j); });
      select.value = i;
      control.value = i;
    };
    select.addEventListener("change", () => { set(Number(select.value)); changed(); });
    return { set, reset: () => set(control.start) };
  }
  const box = make("input", { type: kind === "date" ? "date" : "number", step: "any", class: "value",
    "aria-label": control.name }, row);
  const slider = make("input", { type: "range", id, min: control.min, max: control.max, step: "any" }, row);
  const constant = control.min === control.max;
  if (constant) slider.disabled = box.disabled = true;
  const set = (value, from) => {
    x[first] = value;
    control.value = value;
    if (from !== slider) slider.value = value;
    if (from !== box) box.value = kind === "date" ? day(value) : Number(value.toPrecision(4 + (Math.abs(value) >= 1000)));
  };
  slider.addEventListener("input", () => { set(Number(slider.value), slider); changed(); });
  box.addEventListener("input", () => {
    const value = kind === "date" ? Date.parse(box.value) / 864e5 : parseFloat(box.value);
    if (Number.isFinite(value)) { set(value, box); changed(); }
  });
  let unknown = null;
  if (control.flag) {
    unknown = make("input", { type: "checkbox" }, make("label", { class: "unknown" }, row, "not known "));
    unknown.addEventListener("change", () => {
      slider.disabled = box.disabled = unknown.checked;
      x[first] = unknown.checked ? control.fill : control.value;
      x[first + 1] = Number(unknown.checked);
      changed();
    });
  }
  const reset = () => {
    set(control.start);
    if (unknown) { unknown.checked = slider.disabled = box.disabled = false; x[first + 1] = 0; }
  };
  return { set, reset };
}

/* A table of predictions; its update(predicted) writes them. */
function makeAnswers(place) {
  const table = make("table", { id: "answers" }, make("div", { class: "scroll" }, place));
  const head = make("tr", {}, make("thead", {}, table)), body = make("tbody", {}, table);
  ["target", "predicted", "from", "to", ""].forEach((text) => make("th", {}, head, text));
  const cells = data.targets.map((name, t) => {
    const row = make("tr", {}, body);
    make("td", {}, row, name);
    const [mean, low, high, picture] = [0, 1, 2, 3].map(() => make("td", {}, row));
    mean.className = "strong";
    const svg = make("svg", { viewBox: "0 0 200 16", class: "band" }, picture);
    make("line", { x1: 0, x2: 200, y1: 8, y2: 8, class: "grid" }, svg);
    const band = make("rect", { y: 4, height: 8, rx: 3, fill: colors[t % 10], opacity: 0.35 }, svg);
    return { mean, low, high, band, dot: make("circle", { cy: 8, r: 4, fill: colors[t % 10] }, svg) };
  });
  return function update({ mean, low, high }) {
    cells.forEach((cell, t) => {
      const [start, end] = data.ranges[t];
      const at = (v) => Math.max(0, Math.min(200, (200 * (v - start)) / (end - start)));
      [["mean", mean], ["low", low], ["high", high]].forEach(([name, values]) => {
        cell[name].textContent = number(values[t]);
        cell[name].dataset.value = values[t];
      });
      cell.band.setAttribute("x", at(low[t]));
      cell.band.setAttribute("width", at(high[t]) - at(low[t]));
      cell.dot.setAttribute("cx", at(mean[t]));
    });
  };
}

/* Regions of one and two standard deviations of two targets together. */
function drawEllipse(place, predict, predicted, [t, u]) {
  const { mean, cov } = predicted.normal;
  const a = cov[t][t], b = cov[t][u], c = cov[u][u];
  const half = (a + c) / 2, root = Math.hypot((a - c) / 2, b), angle = Math.atan2(2 * b, a - c) / 2;
  const axes = [Math.sqrt(Math.max(half + root, 0)), Math.sqrt(Math.max(half - root, 0))];
  const curve = (level) => Array.from({ length: 91 }, (_, i) => {
    const p = (i * Math.PI) / 45, s = level * axes[0] * Math.cos(p), r = level * axes[1] * Math.sin(p);
    return [predict.value(t, mean[t] + s * Math.cos(angle) - r * Math.sin(angle)),
      predict.value(u, mean[u] + s * Math.sin(angle) + r * Math.cos(angle))];
  });
  const outer = curve(2), around = (k, n) => extent([...outer.map((p) => p[n]), ...data.ranges[k]]);
  chart(place, {
    x: around(t, 0), y: around(u, 1), xlabel: data.targets[t], ylabel: data.targets[u],
    title: `correlation ${number(t === u ? 1 : b / Math.sqrt(a * c))}`,
    height: 320,
    draw(layer, sx, sy) {
      [1, 2].forEach((level) => make("path", { d: path(curve(level), sx, sy), fill: colors[0],
        "fill-opacity": 0.14, stroke: colors[0] }, layer));
      make("circle", { cx: sx(predicted.mean[t]), cy: sy(predicted.mean[u]), r: 4, fill: colors[0] }, layer);
    },
  });
}

/* One target over one input, the others where they are. */
function drawSlice(place, predict, x, control, t) {
  const { first, kind } = control, isCategory = kind === "category", count = isCategory
    ? control.categories.length : 33;
  const points = Array.from({ length: count }, (_, i) => {
    const here = [...x];
    if (isCategory) control.categories.forEach((_, j) => { here[first + j] = Number(i === j); });
    else here[first] = control.min + ((control.max - control.min) * i) / (count - 1);
    if (control.flag) here[first + 1] = 0;
    const { mean, low, high } = predict(here);
    return { v: isCategory ? i : here[first], mean: mean[t], low: low[t], high: high[t] };
  });
  const short = (text) => (text.length > 12 ? text.slice(0, 11) + "…" : text);
  const xticks = isCategory ? () => control.categories.map((c, i) => ({ at: i, text: count > 14 ? "" : short(c) }))
    : kind === "date" ? dateTicks : ticks;
  const slanted = isCategory && count <= 14 && control.categories.map(short).join("  ").length > 30;
  chart(place, {
    x: isCategory ? [-0.6, count - 0.4] : [control.min, control.max], xticks, fixed: true,
    y: extent(points.flatMap(({ low, high }) => [low, high]).concat(data.ranges[t])),
    xlabel: kind === "duration" ? `${control.name}, days` : control.name, ylabel: data.targets[t],
    width: 320, height: slanted ? 262 : 220, slanted,
    draw(layer, sx, sy) {
      const color = colors[t % 10], now = isCategory ? control.value : x[first];
      make("line", { x1: sx(now), x2: sx(now), y1: 0, y2: 400, class: "ideal" }, layer);
      if (isCategory) {
        points.forEach(({ v, mean, low, high }) => {
          make("line", { x1: sx(v), x2: sx(v), y1: sy(low), y2: sy(high), stroke: color,
            "stroke-width": 5, "stroke-opacity": 0.3, "stroke-linecap": "round" }, layer);
          make("circle", { cx: sx(v), cy: sy(mean), r: 4, fill: color }, layer);
        });
        return;
      }
      const band = [...points.map(({ v, high }) => [v, high]),
        ...points.map(({ v, low }) => [v, low]).reverse()];
      make("path", { d: path(band, sx, sy), fill: color, opacity: 0.18 }, layer);
      make("path", { d: path(points.map(({ v, mean }) => [v, mean]), sx, sy), fill: "none", stroke: color,
        "stroke-width": 2 }, layer);
    },
    nearest({ vx }) {
      const p = points.reduce((a, b) => (Math.abs(a.v - vx) <= Math.abs(b.v - vx) ? a : b));
      const value = isCategory ? control.categories[p.v] : shownAs[kind](p.v);
      return `${control.name} ${value}: ${number(p.mean)}, from ${number(p.low)} to ${number(p.high)}`;
    },
  });
}

function showWhatIf() {
  const place = document.getElementById("what-if");
  if (!place || typeof data.model === "string") return;
  const predict = makePredictor(data.model), T = data.targets.length;
  const x = new Array(data.numInputs).fill(0);
  let pair = [0, Math.min(1, T - 1)], sliced = 0, waiting = false;
  const columns = make("div", { class: "panel" }, place);
  const left = make("div", { class: "controls" }, columns), right = make("div", {}, columns);
  const showAnswers = makeAnswers(right);
  const pairControls = make("div", { class: "choices" }, right);
  const ellipse = make("div", { class: "figure" }, right);
  const sliceControls = make("div", { class: "choices" }, place);
  const slices = make("div", { class: "slices" }, place);
  const drawn = data.controls.filter((c) => c.kind === "category" || c.min !== c.max).slice(0, 12);
  const places = drawn.map(() => make("div", {}, slices));
  function drawSlices() {
    waiting = false;
    drawn.forEach((control, i) => drawSlice(places[i], predict, x, control, sliced));
  }
  function update() {
    const predicted = predict(x);
    showAnswers(predicted);
    if (T > 1) drawEllipse(ellipse, predict, predicted, pair);
    if (!waiting) requestAnimationFrame(drawSlices);
    waiting = true;
  }
  const controls = data.controls.map((control) => makeControl(left, control, x, update));
  const again = make("button", { type: "button" }, left, "back to the start");
  const reset = () => { controls.forEach((control) => control.reset()); update(); };
  again.addEventListener("click", reset);
  if (T > 1) {
    choose(pairControls, "together:", data.targets, pair[0], (t) => { pair = [t, pair[1]]; update(); });
    choose(pairControls, "and", data.targets, pair[1], (t) => { pair = [pair[0], t]; update(); });
  }
  choose(sliceControls, "one input at a time, for", data.targets, 0, (t) => { sliced = t; drawSlices(); });
  reset();
  drawSlices();
}
