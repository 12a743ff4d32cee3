"use strict";
// The model of this page, and what is drawn of it.  SPEC has the numbers, MODEL the functions of the CasADi graph:
//   f(t, x, p, u) -> rates;  slope(t, x, p, u, du) -> nonzeros of df/dx, df/dt along the inputs
//   outputs(t, x, p, u) -> what is drawn, then what the noise needs
// Experiments: y = (p, x at the start, e), rows that are numbers, quantities, or computed from them, as in castfit.

function erf(x) {  // Abramowitz and Stegun 7.1.5 near zero, else the continued fraction of 1 - erf
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; n < 80; n++) { term *= -a * a / n; sum += term / (2 * n + 1); }
    return Math.sign(x) * 2 / Math.sqrt(Math.PI) * sum;
  }
  let below = 0;
  for (let n = 60; n > 0; n--) below = n / 2 / (a + below);
  return Math.sign(x) * (1 - Math.exp(-a * a) / Math.sqrt(Math.PI) / (a + below));
}
const copysign = (x, y) => (y < 0 || Object.is(y, -0) ? -Math.abs(x) : Math.abs(x));

// ---- from the quantities to an experiment's numbers
function begin(e, values) {
  const y = e.base.slice();
  e.of.forEach((row, j) => { if (row >= 0) y[row] = values[e.theta[j]]; });
  for (const part of e.parts) {
    const given = part.source.map((j, i) => (j >= 0 ? values[e.theta[j]] : part.numbers[i]));
    MODEL[part.f](given)[0].forEach((value, i) => { y[part.rows[i]] = value; });
  }
  const first = SPEC.parameters, last = y.length - e.events;
  return { p: y.slice(0, first), x: y.slice(first, last), e: y.slice(last) };
}

function timetable(e, at) {  // what happens when, and the parameters before, between and after
  const time = (i) => at.e[e.instants[i].time];
  const order = e.instants.map((_, i) => i).sort((i, j) => time(i) - time(j) || e.instants[i].moves - e.instants[j].moves || i - j);
  const rows = [{ time: -Infinity, p: at.p, jumps: [], after: false }], past = new Set();
  for (const i of order) {
    if (time(i) > rows[rows.length - 1].time) rows.push({ time: time(i), p: null, jumps: [], after: false });
    const row = rows[rows.length - 1], instant = e.instants[i];
    past.add(i);
    row.p = at.p.slice();
    for (const level of e.levels) {
      if (past.has(level.on) && !past.has(level.off)) {
        row.p[level.parameter] = at.e[level.height] + (level.sets ? 0 : row.p[level.parameter]);
      }
    }
    if (instant.change) { row.jumps.push(instant); row.after = row.after || instant.after; }
  }
  return rows;
}

const jumped = (row, x, u, at) => row.jumps.reduce(
  (now, j) => Float64Array.from(MODEL[j.change]([at.e[j.time]], now, u, j.parameters.map((k) => at.e[k]))[0]), x);

// ---- inputs: local cubics between edges, of the piece in which `inside` lies
function piece(e, inside) {
  let k = 0;
  while (k + 1 < e.edges.length - 1 && inside >= e.edges[k + 1]) k++;
  return k;
}
const signal = (e, k, t) => e.inputs.map((c) => { const s = t - e.edges[k]; return c[k][0] + s * (c[k][1] + s * (c[k][2] + s * c[k][3])); });
const change = (e, k, t) => e.inputs.map((c) => { const s = t - e.edges[k]; return c[k][1] + s * (2 * c[k][2] + 3 * s * c[k][3]); });

// ---- one step after the other: RODAS (Hairer and Wanner 1996, section IV.10), order 4, stiffly accurate
const GAMMA = 0.25, ALPHA = [0, 0.386, 0.21, 0.63, 1, 1], D = [0.25, -0.1043, 0.1035, -0.0362, 0, 0];
const A = [[], [1.544], [0.9466785280815826, 0.2557011698983284],
  [3.314825187068521, 2.896124015972201, 0.9986419139977817],
  [1.221224509226641, 6.019134481288629, 12.53708332932087, -0.687886036105895]];
const C = [[], [-5.6688], [-2.430093356833875, -0.2063599157091915],
  [-0.1073529058151375, -9.594562251023355, -20.47028614809616],
  [7.496443313967647, -10.24680431464352, -33.99990352819905, 11.7089089320616],
  [8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054]];

function factor(M, n, pivot) {  // LU with row exchanges, in place; false if singular
  for (let k = 0; k < n; k++) {
    let best = k;
    for (let i = k + 1; i < n; i++) if (Math.abs(M[i * n + k]) > Math.abs(M[best * n + k])) best = i;
    pivot[k] = best;
    if (!(Math.abs(M[best * n + k]) > 0)) return false;
    if (best !== k) for (let j = 0; j < n; j++) { const m = M[k * n + j]; M[k * n + j] = M[best * n + j]; M[best * n + j] = m; }
    for (let i = k + 1; i < n; i++) {
      if (M[i * n + k] === 0) continue;
      const share = (M[i * n + k] /= M[k * n + k]);
      for (let j = k + 1; j < n; j++) M[i * n + j] -= share * M[k * n + j];
    }
  }
  return true;
}
function solve(M, n, pivot, b) {
  for (let k = 0; k < n; k++) {
    const m = b[pivot[k]]; b[pivot[k]] = b[k]; b[k] = m;
    for (let i = k + 1; i < n; i++) b[i] -= M[i * n + k] * m;
  }
  for (let k = n - 1; k >= 0; k--) {
    b[k] /= M[k * n + k];
    for (let i = 0; i < k; i++) b[i] -= M[i * n + k] * b[k];
  }
}

class Course {  // one experiment on its way: t, x, f(t, x), and how long the next step may be
  constructor(e, x, horizon) {
    Object.assign(this, { e, x: Float64Array.from(x), n: x.length, h: horizon / 1000, steps: 0 });
    this.size = this.x.map((v, i) => Math.max(Math.abs(v), 1e-3 * e.size[i]));
    this.M = new Float64Array(this.n * this.n);
    this.pivot = new Int32Array(this.n);
  }
  // Integrate to `end` without events or kinks on the way; tell `seen` of every step (t0, x0, f0, t1, x1, f1).
  to(end, t, p, seen) {
    const { e, n, M, pivot } = this, k = piece(e, (t + end) / 2), [rows, cols] = SPEC.pattern;
    const f = (at, x) => MODEL.f([at], x, p, signal(e, k, at))[0];
    let f0 = f(t, this.x), fresh = true, nonzeros, ft;
    while (t < end) {
      if (++this.steps > 20000) return t;
      let h = Math.min(this.h, end - t);
      if (end - t - h < 1e-3 * h) h = end - t;
      if (!(t + h > t)) return t;
      if (fresh) [nonzeros, ft] = MODEL.slope([t], this.x, p, signal(e, k, t), change(e, k, t));
      M.fill(0);
      for (let i = 0; i < n; i++) M[i * n + i] = 1 / (GAMMA * h);
      for (let i = 0; i < rows.length; i++) M[rows[i] * n + cols[i]] -= nonzeros[i];
      const K = [];
      let y = this.x, error = Infinity;
      if (factor(M, n, pivot)) {
        for (let s = 0; s < 6; s++) {
          if (s > 0) y = s === 5 ? y.map((v, i) => v + K[4][i]) : this.x.map((v, i) => A[s].reduce((sum, a, j) => sum + a * K[j][i], v));
          const b = Float64Array.from(s === 0 ? f0 : f(t + ALPHA[s] * h, y));
          for (let i = 0; i < n; i++) {
            let sum = h * D[s] * ft[i];
            for (let j = 0; j < s; j++) sum += C[s][j] / h * K[j][i];
            b[i] += sum;
          }
          solve(M, n, pivot, b);
          K.push(b);
        }
        y = y.map((v, i) => v + K[5][i]);
        error = 0;
        for (let i = 0; i < n; i++) {
          const unit = SPEC.tolerance * (Math.max(Math.abs(this.x[i]), Math.abs(y[i])) + 1e-4 * this.size[i]);
          error += (K[5][i] / unit) ** 2;
        }
        error = Math.sqrt(error / Math.max(n, 1));
      }
      const finite = Number.isFinite(error), fac = finite ? Math.min(6, Math.max(0.1, 0.9 * Math.max(error, 1e-10) ** -0.25)) : 0.1;
      if (!finite || error > 1) { this.h = h * Math.min(fac, 0.9); fresh = false; continue; }
      const f1 = f(t + h, y);
      seen(t, this.x, f0, t + h >= end ? end : t + h, y, f1);
      t = t + h >= end || end - t - h < 1e-12 * h ? end : t + h;
      this.h = h < 0.5 * this.h && fac > 1 ? Math.max(this.h, h * fac) : h * fac;
      this.x = y; f0 = f1; fresh = true;
      for (let i = 0; i < n; i++) this.size[i] = Math.max(this.size[i], Math.abs(y[i]));
    }
    return end;
  }
}

// Simulate an experiment: the outputs at times (increasing), NaN behind the place where integration stopped.
function simulate(e, values, times) {
  const at = begin(e, values), rows = timetable(e, at), found = times.map(() => null), last = times[times.length - 1];
  let k = 0, now = 1, course = new Course(e, at.x, last - e.start), t = e.start, stopped = null;
  const slack = 1e-12 * Math.max(Math.abs(e.start), last - e.start);
  while (now < rows.length && rows[now].time < e.start - slack) now++;
  let p = rows[now - 1].p;
  const look = (time, x, inside) => {
    const u = signal(e, piece(e, inside), time);
    e.late.forEach((j) => { u[j] = signal(e, piece(e, time), time)[j]; });
    return Array.from(MODEL.outputs([time], x, p, u)[0]);
  };
  const stops = [...e.edges, ...rows.slice(1).map((r) => r.time), last].filter((s) => s >= e.start && s <= last).sort((a, b) => a - b);
  for (const stop of stops) {
    if (stop > t) {
      const before = t;
      const end = course.to(stop, t, p, (t0, x0, f0, t1, x1, f1) => {
        for (; k < times.length && times[k] <= t1; k++) {
          if (times[k] === t1 && t1 === stop) break;
          const h = t1 - t0, s = (times[k] - t0) / h, r = 1 - s;
          const x = x0.map((v, i) => r * r * ((1 + 2 * s) * v + s * h * f0[i]) + s * s * ((3 - 2 * s) * x1[i] - r * h * f1[i]));
          found[k] = look(times[k], x, (before + stop) / 2);
        }
      });
      if (end < stop) { stopped = end; break; }
      t = stop;
    }
    const inside = stop > e.start ? stop - 1e-9 * (stop - e.start) : stop;
    const wanted = () => { for (; k < times.length && times[k] <= stop; k++) found[k] = look(times[k], course.x, inside); };
    if (now < rows.length && rows[now].time <= stop + slack) {
      for (; now < rows.length && rows[now].time <= stop + slack; now++) {
        if (!rows[now].after && stop > e.start) wanted();
        course.x = jumped(rows[now], course.x, signal(e, piece(e, inside), stop), at);
        p = rows[now].p;
        course.h = Math.min(course.h, (last - e.start) / 1000) || course.h;
      }
    }
    wanted();
  }
  const nothing = Array(SPEC.outputs.length + SPEC.extra).fill(NaN);
  return { found: found.map((f) => f || nothing), stopped };
}

// What a fit would be told by: chi2 where all sigmas are known, else -2 log L, unknown sigmas at their best.
function objective(values, predicted) {
  let chi2 = 0, cost = 0;
  const groups = SPEC.groups.map(() => []);
  SPEC.experiments.forEach((e, i) => e.data.forEach((d) => d.rows.forEach((row, j) => {
    const found = predicted[i][row], more = d.more.map((k) => found[k]);
    const spread = d.computed ? more[0] : d.sigma[j], mu = found[d.output];
    const given = [mu, spread, d.values[j], d.computed ? more.slice(1) : more, MODEL[d.density]];
    if (d.group >= 0) groups[d.group].push(given);
    else { const [c, r] = given[4]([mu], [spread], [d.values[j]], given[3]); cost += c[0]; chi2 += r[0] ** 2; }
  })));
  groups.forEach((of) => {
    const errors = of.map(([mu, s, m, more, density]) => density([mu], [s], [m], more)[1][0]);
    const sigma = Math.sqrt(errors.reduce((sum, r) => sum + r * r, 0) / Math.max(errors.length, 1));
    of.forEach(([mu, s, m, more, density]) => { cost += density([mu], [s * sigma], [m], more)[0][0]; });
  });
  return SPEC.measure === "chi2" ? chi2 : 2 * cost;
}

function everything(values) {  // all curves, and the objective
  const drawn = [], predicted = [], stopped = [];
  for (const e of SPEC.experiments) {
    const times = [...new Set([...e.grid, ...e.times])].sort((a, b) => a - b);
    const out = simulate(e, values, times), place = new Map(times.map((t, i) => [t, i]));
    drawn.push({ times, values: out.found });
    predicted.push(e.times.map((t) => out.found[place.get(t)]));
    if (out.stopped !== null) stopped.push(`${e.name}: the integration stops at ${out.stopped.toPrecision(4)}`);
  }
  return { drawn, objective: objective(values, predicted), stopped };
}
