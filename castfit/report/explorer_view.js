// What is seen: sliders, curves over the data, the objective, and the ellipse of two quantities.
if (typeof document !== "undefined") {
  const values = SPEC.quantities.map((q) => q.value), rows = [];
  const form = document.getElementById("sliders"), curves = document.getElementById("curves"), told = document.getElementById("told");
  const show = (v) => (v === 0 ? "0" : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(4) : String(Number(v.toPrecision(5))));
  const make = (element, attributes = {}, ...inside) => {
    const made = document.createElement(element);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const drawing = (width, height, label) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`); svg.setAttribute("role", "img"); svg.setAttribute("aria-label", label);
    return svg;
  };
  const escape = (s) => s.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
  const position = (q, v) => 1000 * (q.log ? Math.log(v / q.low) / Math.log(q.high / q.low) : (v - q.low) / (q.high - q.low));
  const value = (q, s) => (q.log ? q.low * (q.high / q.low) ** (s / 1000) : q.low + (q.high - q.low) * s / 1000);

  // ---- buttons and sliders
  const set = (all) => { all.forEach((v, j) => { values[j] = v; }); rows.forEach((row) => row.follow()); draw(); };
  const button = (words, action) => { const b = make("button", { type: "button" }, words); b.addEventListener("click", () => action(b)); form.append(b); };
  button("Guess", () => set(SPEC.quantities.map((q) => q.value)));
  if (SPEC.estimate) button("Estimate", () => set(SPEC.estimate.values));
  button("Copy as Python", (b) => {
    const code = `start={${SPEC.quantities.map((q, j) => `${JSON.stringify(q.name)}: ${Number(values[j].toPrecision(6))}`).join(", ")}}`;
    const done = () => { b.textContent = "Copied"; setTimeout(() => { b.textContent = "Copy as Python"; }, 1500); };
    const by = () => prompt("For cf.fit(problem, ...):", code);
    if (navigator.clipboard) navigator.clipboard.writeText(code).then(done, by); else by();
  });
  SPEC.quantities.forEach((q, j) => {
    const range = make("input", { type: "range", min: 0, max: 1000, step: 1, id: `s${j}` });
    const field = make("input", { type: "text", inputmode: "decimal", "aria-label": `value of ${q.name}` });
    const follow = () => { range.value = position(q, values[j]); field.value = show(values[j]); };
    range.addEventListener("input", () => { values[j] = value(q, Number(range.value)); field.value = show(values[j]); later(); });
    field.addEventListener("change", () => { const v = Number(field.value); if (Number.isFinite(v) && field.value.trim()) values[j] = v; follow(); draw(); });
    form.append(make("div", { class: "row" }, make("label", { for: `s${j}` }, q.name), field, range));
    rows.push({ follow });
    follow();
  });

  // ---- axes
  const W = 420, H = 250, L = 58, R = 10, T = 8, B = 30;
  const ticks = (low, high) => {
    const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((m) => m * unit >= rough) * unit;
    const out = [];
    for (let v = Math.ceil(low / step) * step; v <= high + 1e-9 * step; v += step) out.push(Math.abs(v) < 1e-9 * step ? 0 : v);
    return out;
  };
  const label = (v) => (v !== 0 && (Math.abs(v) >= 1e4 || Math.abs(v) < 1e-2) ? v.toExponential(1) : String(Number(v.toPrecision(4))));
  const axes = (x, y, [x0, x1], [y0, y1], words) => {
    let out = `<path class="axis" d="M${L} ${T}V${H - B}H${W - R}"/>`;
    for (const v of ticks(x0, x1)) out += `<text x="${x(v)}" y="${H - B + 14}" text-anchor="middle">${label(v)}</text>`;
    for (const v of ticks(y0, y1)) out += `<path class="axis" d="M${L - 4} ${y(v)}H${L}"/><text x="${L - 6}" y="${y(v) + 4}" text-anchor="end">${label(v)}</text>`;
    return `${out}<text x="${(L + W - R) / 2}" y="${H - 3}" text-anchor="middle">${escape(words)}</text>`;
  };
  const scale = (a, b, from, to) => (v) => from + (to - from) * (v - a) / (b - a);
  const widened = (low, high) => { const more = 0.05 * (high - low) || Math.abs(high) || 1; return [low - more, high + more]; };

  // ---- one panel an output of an experiment
  const panels = [], heights = new Map();
  SPEC.experiments.forEach((e, i) => SPEC.outputs.forEach((name, k) => {
    const data = e.data.filter((d) => d.output === k);
    const measured = SPEC.experiments.some((other) => other.data.some((d) => d.output === k));
    if (panels.length >= 48 || (measured && !data.length)) return;
    const words = SPEC.experiments.length > 1 ? `${name}, ${e.name}` : name, svg = drawing(W, H, words);
    curves.append(make("figure", {}, make("figcaption", {}, SPEC.units[name] ? `${words} [${SPEC.units[name]}]` : words), svg));
    panels.push({ i, k, data, svg });
  }));
  const panel = ({ i, k, data, svg }, drawn) => {
    const e = SPEC.experiments[i], key = `${i} ${k}`, shown = drawn.values.map((v) => v[k]);
    const points = data.flatMap((d) => d.rows.map((row, j) => [e.times[row], d.values[j], d.computed || d.group >= 0 ? 0 : d.sigma[j]]));
    const every = [...shown, ...points.flatMap(([, v, s]) => [v - s, v + s])].filter(Number.isFinite);
    let [y0, y1] = every.length ? widened(Math.min(...every), Math.max(...every)) : [0, 1];
    const before = heights.get(key);  // axes grow at once, and shrink only when the curve became much smaller
    if (before && before[0] <= y0 && before[1] >= y1 && (y1 - y0) > 0.4 * (before[1] - before[0])) [y0, y1] = before;
    heights.set(key, [y0, y1]);
    const [x0, x1] = [drawn.times[0], drawn.times[drawn.times.length - 1]];
    const x = scale(x0, x1, L, W - R), y = scale(y0, y1, H - B, T);
    let path = "", pen = "M";
    drawn.times.forEach((t, n) => { if (Number.isFinite(shown[n])) { path += `${pen}${x(t).toFixed(1)} ${y(shown[n]).toFixed(1)}`; pen = "L"; } else pen = "M"; });
    let out = axes(x, y, [x0, x1], [y0, y1], SPEC.units.time ? `time [${SPEC.units.time}]` : "time");
    for (const [t, v, s] of points) {
      if (s) out += `<path class="bar" d="M${x(t)} ${y(v - s)}V${y(v + s)}"/>`;
      out += `<circle class="datum" cx="${x(t)}" cy="${y(v)}" r="3"/>`;
    }
    svg.innerHTML = `${out}<path class="curve" d="${path}"/>`;
  };

  // ---- the ellipse of two quantities, 95 %, and where the sliders are
  const region = SPEC.estimate && SPEC.estimate.covariance && values.length > 1 ? SPEC.estimate : null;
  let ellipse = () => {};
  if (region) {
    const choose = (k) => { const s = make("select", { "aria-label": "quantity" }, ...SPEC.quantities.map((q, j) => make("option", { value: j }, q.name))); s.value = k; s.addEventListener("change", () => draw()); return s; };
    const [first, second] = [choose(0), choose(1)], svg = drawing(W, H, "The estimate's 95 % region of two quantities, and the sliders' point");
    form.append(make("div", { class: "pair" }, first, second), make("figure", {}, svg, make("figcaption", {}, "95 % region of the estimate (linearised), and where the sliders are")));
    ellipse = () => {
      const at = [Number(first.value), Number(second.value)];
      if (at[0] === at[1]) { svg.innerHTML = `<text x="${W / 2}" y="${H / 2}" text-anchor="middle">choose two quantities</text>`; return; }
      const search = (j, v) => (region.log[j] ? Math.log(v) : v), back = (j, v) => (region.log[j] ? Math.exp(v) : v);
      const [a, b] = at.map((j) => search(j, region.values[j])), V = at.map((i) => at.map((j) => region.covariance[i][j] * region.size));
      const l = Math.sqrt(V[0][0]), m = V[1][0] / l || 0, n = Math.sqrt(Math.max(V[1][1] - m * m, 0)), rim = [];
      for (let k = 0; k <= 90; k++) { const c = Math.cos(k * Math.PI / 45), s = Math.sin(k * Math.PI / 45); rim.push([back(at[0], a + l * c), back(at[1], b + m * c + n * s)]); }
      const here = [values[at[0]], values[at[1]]], all = [...rim, here];
      const [x0, x1] = widened(Math.min(...all.map((v) => v[0])), Math.max(...all.map((v) => v[0])));
      const [y0, y1] = widened(Math.min(...all.map((v) => v[1])), Math.max(...all.map((v) => v[1])));
      const x = scale(x0, x1, L, W - R), y = scale(y0, y1, H - B, T);
      svg.innerHTML = `${axes(x, y, [x0, x1], [y0, y1], SPEC.quantities[at[0]].name)}<path class="region" d="M${rim.map((v) => `${x(v[0])} ${y(v[1])}`).join("L")}Z"/><circle class="here" cx="${x(here[0])}" cy="${y(here[1])}" r="4"/>`;
    };
  }

  // ---- all of it
  const draw = () => {
    const { drawn, objective: cost, stopped } = everything(values);
    panels.forEach((p) => panel(p, drawn[p.i]));
    const parts = [make("strong", {}, Number.isFinite(cost) ? `${SPEC.measure} = ${cost.toPrecision(6)}` : `${SPEC.measure} cannot be computed here`)];
    if (SPEC.estimate) parts.push(` (the estimate: ${SPEC.estimate.objective.toPrecision(6)})`);
    if (stopped.length) parts.push(make("span", { class: "wrong" }, `. ${stopped.slice(0, 2).join("; ")}`));
    told.replaceChildren(...parts);
    ellipse();
  };
  SPEC.notes.forEach((words) => document.querySelector("footer").prepend(make("p", {}, words)));
  let waiting = false;
  const later = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } };
  draw();
}
