"use strict";
/* What moves on the page, from the page's data. */

const data = JSON.parse(document.getElementById("data").textContent);

document.querySelectorAll("table").forEach(sortable);

/* Predicted against observed, each row left out in turn. */
function showScatter() {
  const place = document.getElementById("scatter");
  if (!place) return;
  const controls = make("div", { class: "choices" }, place), figure = make("div", { class: "figure" }, place);
  function show(t) {
    const { y, mean, low, high, row } = data.scatter[t];
    const both = extent([...y, ...mean]);
    const bars = y.length <= 500;
    chart(figure, {
      x: both, y: both, xlabel: `${data.targets[t]}, observed`, ylabel: "predicted from the other rows",
      draw(layer, sx, sy) {
        make("path", { d: path([[both[0], both[0]], [both[1], both[1]]], sx, sy), class: "ideal" }, layer);
        y.forEach((v, n) => {
          if (bars) make("line", { x1: sx(v), x2: sx(v), y1: sy(low[n]), y2: sy(high[n]), class: "bar" }, layer);
          make("circle", { cx: sx(v), cy: sy(mean[n]), r: bars ? 3 : 1.8, fill: colors[t % 10],
            "fill-opacity": bars ? 0.85 : 0.6 }, layer);
        });
      },
      nearest({ px, py }, sx, sy) {
        let best = null, distance = 144;
        y.forEach((v, n) => {
          const d2 = (sx(v) - px) ** 2 + (sy(mean[n]) - py) ** 2;
          if (d2 < distance) [best, distance] = [n, d2];
        });
        return best === null ? null : `row ${row[best]}: observed ${number(y[best])}, predicted `
          + `${number(mean[best])}, from ${number(low[best])} to ${number(high[best])}`;
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
  const key = make("div", { class: "key" }, place), figure = make("div", { class: "figure" }, place);
  lines.forEach(({ name, color }) => {
    make("i", { style: `background:${color}` }, make("span", {}, key)).after(name);
  });
  const percent = (low, high) => ticks(low, high).map(({ at }) => ({ at, text: `${number(100 * at)} %` }));
  chart(figure, {
    x: [0, 1], y: [0, 1], xlabel: "should be inside the region", ylabel: "rows that are",
    xticks: percent, yticks: percent,
    draw(layer, sx, sy) {
      make("path", { d: path([[0, 0], [1, 1]], sx, sy), class: "ideal" }, layer);
      lines.forEach(({ curve, color, wide }) => make("path", { d: path(levels.map((p, i) => [p, curve[i]]),
        sx, sy), fill: "none", stroke: color, "stroke-width": wide ? 2.5 : 1.5 }, layer));
    },
    nearest({ vx, vy }) {
      const i = Math.max(0, Math.min(levels.length - 1, Math.round(vx * (levels.length - 1))));
      const line = lines.reduce((a, b) => (Math.abs(a.curve[i] - vy) <= Math.abs(b.curve[i] - vy) ? a : b));
      return `${line.name}: ${number(100 * line.curve[i])} % inside, ${number(100 * levels[i])} % expected`;
    },
  });
}

/* Maps over two inputs. */
const palette = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function color(part) {
  const at = Math.max(0, Math.min(0.9999, part)) * (palette.length - 1), i = Math.floor(at);
  return palette[i].map((c, n) => Math.round(c + (palette[i + 1][n] - c) * (at - i)));
}

/* Cells as a picture; rows of cells go upwards. */
function picture(cells, width, height, low, high) {
  const canvas = make("canvas", { width, height }), context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  cells.forEach((v, n) => {
    const place = 4 * ((height - 1 - Math.floor(n / width)) * width + (n % width));
    image.data.set([...color((v - low) / (high - low || 1)), 255], place);
  });
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function colorBar(place, low, high) {
  const bar = make("div", { class: "colorbar" }, place);
  const stops = Array.from({ length: 9 }, (_, i) => `rgb(${color(i / 8).join(",")})`);
  make("span", {}, bar, number(low));
  make("i", { style: `background:linear-gradient(90deg,${stops.join(",")})` }, bar);
  make("span", {}, bar, number(high));
}

function showMaps() {
  const place = document.getElementById("maps");
  if (!place || !data.maps) return;
  const { x, y, ratio, mean, std, kinds } = data.maps, controls = make("div", { class: "choices" }, place);
  const panels = make("div", { class: "columns" }, place);
  const ends = (v) => { const half = (v[1] - v[0]) / 2; return [v[0] - half, v[v.length - 1] + half]; };
  const [ex, ey] = [ends(x), ends(y)], names = data.controls.map((c) => c.name);
  const tall = ratio ? (ey[1] - ey[0]) / ((ex[1] - ex[0]) * ratio) : 0.75;
  const [xticks, yticks] = kinds.map((kind) => (kind === "date" ? dateTicks : ticks));
  function show(t) {
    panels.replaceChildren();
    [["mean", mean[t]], ["standard deviation", std[t]]].forEach(([what, cells]) => {
      let low = Infinity, high = -Infinity;
      cells.forEach((v) => { low = Math.min(low, v); high = Math.max(high, v); });
      const figure = make("div", {}, panels), source = picture(cells, x.length, y.length, low, high);
      const drawing = make("div", { class: "figure" }, figure);
      chart(drawing, {
        x: ex, y: ey, xlabel: names[0], ylabel: names[1], title: `${data.targets[t]}, ${what}`,
        xticks, yticks, height: 72 + 390 * Math.max(0.3, Math.min(1.2, tall)),
        draw(layer, sx, sy) {
          make("image", { href: source, x: sx(ex[0]), y: sy(ey[1]), width: sx(ex[1]) - sx(ex[0]),
            height: sy(ey[0]) - sy(ey[1]), preserveAspectRatio: "none", class: "cells" }, layer);
        },
        nearest({ vx, vy }) {
          const i = Math.floor(((vx - ex[0]) / (ex[1] - ex[0])) * x.length);
          const j = Math.floor(((vy - ey[0]) / (ey[1] - ey[0])) * y.length);
          if (i < 0 || j < 0 || i >= x.length || j >= y.length) return null;
          const [a, b] = [[x[i], kinds[0]], [y[j], kinds[1]]].map(([v, kind]) => shownAs[kind](v));
          return `${names[0]} ${a}, ${names[1]} ${b}: ${number(cells[j * x.length + i])}`;
        },
      });
      colorBar(figure, low, high);
    });
  }
  choose(controls, "target", data.targets.slice(0, mean.length), 0, show);
  show(0);
}

showWhatIf();
showScatter();
showCalibration();
showMaps();
