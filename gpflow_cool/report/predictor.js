"use strict";
/* Predictions of a fitted model, from what report/whatif.py wrote: no document, no browser needed. */

function decodeBase64(text) {
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const value = new Uint8Array(128);
  for (let i = 0; i < 64; i++) value[letters.charCodeAt(i)] = i;
  const end = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const bytes = new Uint8Array((text.length / 4) * 3 - end);
  for (let i = 0, n = 0; i < text.length; i += 4) {
    const four = [0, 1, 2, 3].reduce((sum, k) => sum * 64 + value[text.charCodeAt(i + k)], 0);
    for (let k = 16; k >= 0 && n < bytes.length; k -= 8) bytes[n++] = (four >> k) & 255;
  }
  return bytes;
}

function decodeArray(stored) {
  const buffer = decodeBase64(stored.data).buffer;
  const numbers = stored.type === "f8" ? new Float64Array(buffer) : new Float32Array(buffer);
  return { shape: stored.shape, numbers };
}

/* Kernels. a and b are arrays of inputs, read from the offsets i and j. */
const ofDistance = {
  se: (r2) => Math.exp(-0.5 * r2),
  exponential: (r2) => Math.exp(-0.5 * Math.sqrt(r2)),
  matern12: (r2) => Math.exp(-Math.sqrt(r2)),
  matern32: (r2) => { const s = Math.sqrt(3 * r2); return (1 + s) * Math.exp(-s); },
  matern52: (r2) => { const s = Math.sqrt(5 * r2); return (1 + s + (5 / 3) * r2) * Math.exp(-s); },
  laplacian: (sum) => Math.exp(-sum),
  rq: (r2, kernel) => Math.pow(1 + (0.5 * r2) / kernel.alpha, -kernel.alpha),
};

function covariance(kernel, a, i, b, j) {
  if (kernel.kind === "sum" || kernel.kind === "product") {
    const values = kernel.parts.map((part) => covariance(part, a, i, b, j));
    return values.reduce((x, y) => (kernel.kind === "sum" ? x + y : x * y));
  }
  if (kernel.kind === "constant") return kernel.variance;
  let total = 0;
  for (let n = 0; n < kernel.dims.length; n++) {
    const d = kernel.dims[n], x = a[i + d], y = b[j + d], scale = kernel.scales[n];
    if (kernel.kind === "linear") total += scale * x * y;
    else if (kernel.kind === "laplacian") total += Math.abs((x - y) / scale);
    else total += ((x - y) / scale) ** 2;
  }
  return kernel.kind === "linear" ? total : kernel.variance * ofDistance[kernel.kind](total, kernel);
}

/* Transforms of targets, as in table/transforms.py: the inverse of g, and its slope log g'(y). */
const boxCox = (u, power) => (power === 0 ? Math.log1p(u) : Math.expm1(power * Math.log1p(u)) / power);
const inverseBoxCox = (z, power) => Math.expm1(power === 0 ? z : Math.log1p(power * z) / power);

const curves = {
  log: (y) => Math.log(y),
  "yeo-johnson": (y, { power, unit }) =>
    boxCox(Math.max(y, 0) / unit, power) - boxCox(Math.max(-y, 0) / unit, 2 - power),
};
const inverseCurves = {
  log: (z) => Math.exp(z),
  "yeo-johnson": (z, { power, unit }) =>
    unit * (inverseBoxCox(Math.max(z, 0), power) - inverseBoxCox(Math.max(-z, 0), 2 - power)),
};
const logSlopes = {
  log: (y) => -Math.log(y),
  "yeo-johnson": (y, { power, unit }) =>
    (power - 1) * Math.sign(y) * Math.log1p(Math.abs(y / unit)) - Math.log(unit),
};

/* Outside low and high, the transform goes on as a straight line; null where there is no such end. */
function inverseTransform(transform, z) {
  const { kind, low, high } = transform;
  if (kind === "none") return z;
  const ends = [low, high].map((y) => (y === null ? null : curves[kind](y, transform)));
  let inside = z;
  if (ends[0] !== null) inside = Math.max(inside, ends[0]);
  if (ends[1] !== null) inside = Math.min(inside, ends[1]);
  const y = inverseCurves[kind](inside, transform);
  return z === inside ? y : y + (z - inside) * Math.exp(-logSlopes[kind](y, transform));
}

/* A function that takes inputs in the user's units to means of the targets, ends of intervals of two
   standard deviations, and `normal`: means and covariances of the transformed, standardised targets.
   Its value(t, z) is the target that such a number stands for. */
function makePredictor(stored) {
  const { inputs, targets, kernel } = stored;
  const moments = stored.A ? momentsGivenObserved(stored) : momentsFromPoints(stored);
  const value = (t, z) =>
    inverseTransform(targets.transforms[t], z * targets.scale[t] + targets.centre[t]);
  function meanOf(t, m, s) {
    if (targets.transforms[t].kind === "none") return value(t, m);
    const { nodes, weights } = targets.quadrature;
    return nodes.reduce((sum, x, i) => sum + weights[i] * value(t, m + s * x), 0);
  }
  function predict(x) {
    const z = Array.from(x, (entry, i) => (entry - inputs.centre[i]) * inputs.inverse[i]);
    const normal = moments(z, covariance(kernel, z, 0, z, 0));
    const means = Array.from(normal.mean), stds = means.map((_, t) => Math.sqrt(normal.cov[t][t]));
    return {
      mean: means.map((m, t) => meanOf(t, m, stds[t])),
      low: means.map((m, t) => value(t, m - 2 * stds[t])),
      high: means.map((m, t) => value(t, m + 2 * stds[t])),
      normal,
    };
  }
  predict.value = value;
  return predict;
}

function squareMatrix(size) {
  return Array.from({ length: size }, () => new Float64Array(size));
}

/* k(X, z). */
function crossCovariances(kernel, X, z) {
  const [N, D] = X.shape, k = new Float64Array(N);
  for (let n = 0; n < N; n++) k[n] = covariance(kernel, X.numbers, n * D, z, 0);
  return k;
}

/* k^T A for a matrix A with as many rows as k has numbers. */
function weightedSums(k, A) {
  const columns = A.shape[1], sums = new Float64Array(columns);
  for (let n = 0; n < k.length; n++)
    for (let c = 0; c < columns; c++) sums[c] += k[n] * A.numbers[n * columns + c];
  return sums;
}

/* PageForm of whatif.py. */
function momentsFromPoints(stored) {
  const [Z, alpha, V, w, d, P] = ["Z", "alpha", "V", "w", "d", "P"].map((n) => decodeArray(stored[n]));
  const X = stored.X ? decodeArray(stored.X) : Z, T = d.shape[0];
  return function (z, prior) {
    const k = crossCovariances(stored.kernel, Z, z), v = weightedSums(k, V);
    const mean = weightedSums(stored.X ? crossCovariances(stored.kernel, X, z) : k, alpha);
    const explained = weightedSums(v.map((value) => value * value), w), cov = squareMatrix(T);
    for (let j = 0; j < T; j++) {
      const q = Math.max(d.numbers[j] * prior - explained[j], 0) + 1;
      for (let t = 0; t < T; t++)
        for (let u = 0; u < T; u++) cov[t][u] += P.numbers[t * T + j] * P.numbers[u * T + j] * q;
    }
    return { mean, cov };
  };
}

/* ObservedForm of whatif.py. */
function momentsGivenObserved(stored) {
  const [X, alpha, A, entries, C, Sigma] = ["X", "alpha", "A", "entries", "C", "Sigma"]
    .map((n) => decodeArray(stored[n]));
  const T = C.shape[0], n = entries.shape[0];
  return function (z, prior) {
    const k = crossCovariances(stored.kernel, X, z), cov = squareMatrix(T);
    const h = Array.from({ length: T }, () => new Float64Array(n));
    for (let t = 0; t < T; t++) {
      for (let o = 0; o < n; o++)
        h[t][o] = k[entries.numbers[2 * o]] * C.numbers[t * T + entries.numbers[2 * o + 1]];
      for (let u = 0; u < T; u++) cov[t][u] = prior * C.numbers[t * T + u] + Sigma.numbers[t * T + u];
    }
    const g = new Float64Array(T);
    for (let i = 0, start = 0; i < n; start += ++i) {
      for (let t = 0; t < T; t++) {
        g[t] = 0;
        for (let o = 0; o <= i; o++) g[t] += A.numbers[start + o] * h[t][o];
      }
      for (let t = 0; t < T; t++) for (let u = 0; u < T; u++) cov[t][u] -= g[t] * g[u];
    }
    return { mean: weightedSums(k, alpha), cov };
  };
}
