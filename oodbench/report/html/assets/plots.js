// Scatter, learning curves and the response to hyperparameters.
function bodyWidth() { return Math.max(300, byId("leaderboard").querySelector(".body").clientWidth); }

function judged(dataset) {
  const P = rule().points, R = data().runs, keep = shownSet(), found = [];
  for (let i = 0; i < P.run.length; i++) {
    const run = P.run[i];
    if (R.dataset[run] === dataset && keep.has(R.label[run])) found.push({ run, label: R.label[run], inside: P.inside[i], test: P.test[i], score: P.score[i], step: P.step[i], chosen: P.chosen[i] });
  }
  return found;
}
const tellRun = (p) => {
  const R = data().runs, share = data().datasets[R.dataset[p.run]].percent;
  return `${label(p.label)}, test ${testsName(R.tests[p.run])}\ndraw ${R.draw[p.run]}, trial ${R.trial[p.run]}, step ${p.step}${p.chosen ? ", chosen" : ""}\nin ${number(p.inside, share)}, out ${number(p.test, share)}`;
};
const tickText = (percent) => (t) => short(percent ? 100 * t : t);

function datasetChoice() {
  if (state.dataset >= 0 || data().datasets.length < 2) return null;
  return el("p", { class: "note" }, `Shown for ${data().datasets[detail()].name}; choose another dataset above.`);
}

function showScatter() {
  const d = detail(), dataset = data().datasets[d], points = judged(d).filter((p) => !missing(p.inside) && !missing(p.test));
  if (!points.length) return [datasetChoice(), empty("No run has ended with finite values yet.")];
  const width = Math.min(bodyWidth(), 760), height = Math.min(460, Math.max(300, width * 0.62));
  const box = { left: 52, right: width - 12, top: 24, bottom: height - 44 };
  const xs = span(points.map((p) => p.inside), dataset.percent), ys = span(points.map((p) => p.test), dataset.percent);
  const x = scale(xs.low, xs.high, box.left, box.right, xs.log), y = scale(ys.low, ys.high, box.bottom, box.top, ys.log);
  for (const p of points) { p.x = x(p.inside); p.y = y(p.test); }
  const groups = shown().map((l) => {
    const own = points.filter((p) => p.label === l), draw = (list, r) => list.map((p) => mark(l, p.x, p.y, r)).join("");
    return [svg("path", { class: `fill faint ${color(l)}`, d: draw(own.filter((p) => !p.chosen), 2.6) }), svg("path", { class: `fill ${color(l)}`, "data-chosen": label(l), d: draw(own.filter((p) => p.chosen), 4.4) })];
  });
  const low = Math.max(xs.low, ys.low), high = Math.min(xs.high, ys.high);
  const line = high > low ? svg("path", { class: "diagonal", d: `M${x(low)} ${y(low)}L${x(high)} ${y(high)}` }) : null;
  const text = tickText(dataset.percent), name = `${dataset.metric}${dataset.percent ? " (%)" : ""}`;
  const labels = { x: text, y: text, below: `${name} in distribution`, above: `${name} on the test environments` };
  const summary = `Scatter of ${plural(points.length, "run")} of ${dataset.name}: in-distribution against test ${dataset.metric}`;
  const picture = chart(width, height, summary, axes(x, y, box, labels), line, groups, hotspots(width, height, points, tellRun, (p) => openRun(p.run)));
  const legend = el("div", { class: "legend" }, shown().filter((l) => points.some((p) => p.label === l)).map((l) => key(color(l), l, label(l))));
  const caption = el("figcaption", {}, `${dataset.name}: each run at the step where ${state.rule} stops it; strong marks are chosen runs, the dotted line is equality. In distribution: the training environments' out splits.`);
  const chosen = points.filter((p) => p.chosen).map((p) => p.run);
  return [datasetChoice(), el("figure", {}, legend, picture, caption), later("The chosen runs as a table", () => runList(chosen))];
}

function curveCells(d) {
  const R = data().runs, keep = shownSet(), found = [];
  rule().cells.forEach((run, cell) => {
    if (R.dataset[run] === d && keep.has(R.label[run])) found.push({ cell, label: R.label[run], tests: R.tests[run] });
  });
  return found.sort((a, b) => a.label - b.label);
}

function showCurves() {
  const d = detail(), dataset = data().datasets[d], cells = curveCells(d);
  if (!cells.length) return [datasetChoice(), empty("No cell is complete under this rule yet.")];
  const tests = [...new Set(cells.map((c) => c.tests))], test = tests.includes(state.tests) ? state.tests : tests[0];
  const seen = (c) => state.splits || (role(c) === "test" ? data().splits[c.split] === "in" : data().splits[c.split] === "out") || !heldOut;
  const all = rule().curves, heldOut = all.some((c) => data().splits[c.split] === "out");
  const panels = cells.filter((c) => c.tests === test).map((c) => ({ ...c, curves: all.filter((v) => v.cell === c.cell && seen(v) && role(v) !== "other") }));
  const ys = span(panels.flatMap((p) => p.curves.flatMap((c) => c.mean)), dataset.percent);
  const names = [...new Set(panels.flatMap((p) => p.curves.map((c) => c.environment)))].sort((a, b) => a - b);
  const legend = el("div", { class: "legend" }, names.map((e) => el("span", { class: "key" }, el("span", { class: `swatch ${color(names.indexOf(e))}` }), `${data().environments[e]}${data().tests[test].includes(data().environments[e]) ? " (test, thick)" : ""}`)));
  const controls = el("div", { class: "row" }, tests.length > 1 ? choice("tests", "Test environments", tests.map((t) => [t, testsName(t)]), test, (v) => { state.tests = Number(v); render(["curves"]); }) : null, el("label", {}, el("input", { type: "checkbox", "data-key": "splits", checked: state.splits, onchange: (e) => { state.splits = e.target.checked; render(["curves"]); } }), " every split (dotted: in)"));
  const made = panels.map((p) => el("div", {}, el("h3", {}, label(p.label)), curvePanel(p, ys, names, dataset), later("as a table", () => curveTable(p, dataset))));
  const every = state.splits ? "Every split" : "Training and validation environments: out splits; test environments: in splits";
  return [datasetChoice(), controls, legend, el("div", { class: "panels" }, made), el("p", { class: "caption" }, `${dataset.name}, test ${testsName(test)}: ${dataset.metric}${dataset.percent ? " (%)" : ""} over steps; means over the chosen runs of the trials, bands of one standard error. ${every}.`)];
}
const role = (curve) => data().roles[curve.role];

function curvePanel(panel, ys, names, dataset) {
  const columns = Math.max(1, Math.floor((bodyWidth() + 18) / 268)), width = Math.floor((bodyWidth() - (columns - 1) * 18) / columns), height = 190;
  const box = { left: 40, right: width - 6, top: 10, bottom: height - 26 };
  const stepsOf = (c) => data().steps[c.steps];
  const last = Math.max(1, ...panel.curves.map((c) => stepsOf(c)[stepsOf(c).length - 1])), first = Math.min(last, ...panel.curves.map((c) => stepsOf(c)[0]));
  const x = scale(first, last, box.left, box.right), y = scale(ys.low, ys.high, box.bottom, box.top, ys.log);
  const points = [];
  const lines = panel.curves.map((c) => {
    const s = stepsOf(c), at = s.map((v, i) => [x(v), missing(c.mean[i]) ? NaN : y(c.mean[i])]), className = color(names.indexOf(c.environment));
    at.forEach(([px, py], i) => { if (Number.isFinite(py)) points.push({ x: px, y: py, curve: c, i }); });
    const solid = role(c) === "test" || data().splits[c.split] === "out" || !state.splits;
    const line = svg("path", { class: `line stroke ${role(c) === "test" ? "test" : ""} ${solid ? "" : "in"} ${className}`, d: polyline(at) });
    if (!c.error) return line;
    const edge = (sign) => s.map((v, i) => [x(v), y(Math.min(ys.high, Math.max(ys.low, c.mean[i] + sign * (c.error[i] || 0))))]).filter((_, i) => !missing(c.mean[i]));
    const band = [...edge(1), ...edge(-1).reverse()].map(([a, b]) => `${round(a)} ${round(b)}`);
    return [band.length > 3 ? svg("path", { class: `band fill ${className}`, d: `M${band.join("L")}z` }) : null, line];
  });
  const tell = (p) => `${data().environments[p.curve.environment]} (${role(p.curve)}), ${data().splits[p.curve.split]} split\nstep ${stepsOf(p.curve)[p.i]}: ${number(p.curve.mean[p.i], dataset.percent)}${p.curve.error ? ` ± ${number(p.curve.error[p.i], dataset.percent, 2)}` : ""}, ${plural(p.curve.runs, "run")}`;
  const open = () => openRuns(`${label(panel.label)}, test ${testsName(panel.tests)}: the chosen runs`, judged(detail()).filter((p) => p.chosen && p.label === panel.label && data().runs.tests[p.run] === panel.tests).map((p) => p.run));
  const text = tickText(dataset.percent);
  return chart(width, height, `Learning curves of ${label(panel.label)}`, axes(x, y, box, { x: short, y: text }), lines, hotspots(width, height, points, tell, open));
}

function curveTable(panel, dataset) {
  const rows = panel.curves.map((c) => [data().environments[c.environment], { content: role(c), class: "text" }, { content: data().splits[c.split], class: "text" }, number(c.mean[0], dataset.percent), number(c.mean[c.mean.length - 1], dataset.percent), c.runs]);
  return table("", ["environment", { text: "role", class: "text" }, { text: "split", class: "text" }, "first", "last", "runs"], rows, { label: `Curves of ${label(panel.label)}` });
}

function variedHparams(points) {
  const values = new Map();
  for (const p of points) {
    for (const [name, value] of Object.entries(data().hparams[data().runs.hparams[p.run]])) {
      if (!values.has(name)) values.set(name, new Set());
      values.get(name).add(JSON.stringify(value));
    }
  }
  return [...values].filter(([, found]) => found.size > 1).map(([name]) => name);
}

function showHparams() {
  const d = detail(), dataset = data().datasets[d], points = judged(d).filter((p) => !missing(p.test));
  const labels = shown().filter((l) => variedHparams(points.filter((p) => p.label === l)).length);
  if (!labels.length) return [datasetChoice(), empty("No hyperparameter varies between the runs that have ended.")];
  const l = labels.includes(state.hparamsOf) ? state.hparamsOf : labels[0], own = points.filter((p) => p.label === l);
  const pick = choice("hparamsOf", "Algorithm", labels.map((i) => [i, label(i)]), l, (v) => { state.hparamsOf = Number(v); render(["hparams"]); });
  const ys = span(own.map((p) => p.test), dataset.percent);
  const panels = variedHparams(own).map((name) => el("div", {}, el("h3", {}, el("code", {}, name)), hparamPanel(name, own, ys, l, dataset)));
  const caption = `${label(l)} on ${dataset.name}: test ${dataset.metric}${dataset.percent ? " (%)" : ""} of every run against the value that was drawn. Ringed: runs that ${state.rule} chose.`;
  return [datasetChoice(), el("div", { class: "row" }, pick), el("div", { class: "panels" }, panels), el("p", { class: "caption" }, caption), later("The runs as a table", () => runList(own.map((p) => p.run)))];
}

function hparamPanel(name, points, ys, l, dataset) {
  const columns = Math.max(1, Math.floor((bodyWidth() + 18) / 268)), width = Math.floor((bodyWidth() - (columns - 1) * 18) / columns), height = 180;
  const box = { left: 40, right: width - 10, top: 10, bottom: height - 26 };
  const valued = points.map((p) => ({ ...p, value: data().hparams[data().runs.hparams[p.run]][name] })).filter((p) => p.value !== undefined);
  const kinds = [...new Set(valued.map((p) => p.value))].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
  const numeric = kinds.length > 4 && kinds.every((v) => typeof v === "number");
  let x, marksAt = null;
  if (numeric) {
    const xs = span(valued.map((p) => p.value), false);
    x = scale(xs.low, xs.high, box.left, box.right, xs.log);
  } else {
    const place = scale(-0.5, kinds.length - 0.5, box.left, box.right);
    x = (v) => place(kinds.indexOf(v));
    marksAt = kinds.map((v) => [v, typeof v === "number" ? short(v) : String(v)]);
  }
  const y = scale(ys.low, ys.high, box.bottom, box.top, ys.log);
  for (const p of valued) { p.x = x(p.value); p.y = y(p.test); }
  const path = (list, r) => list.map((p) => mark(l, p.x, p.y, r)).join("");
  const tell = (p) => `${name} = ${p.value}\n${tellRun(p)}`;
  const labels = { x: short, y: tickText(dataset.percent), marks: marksAt };
  return chart(width, height, `${name} of ${label(l)} against test ${dataset.metric}`, axes(x, y, box, labels), svg("path", { class: `fill faint ${color(l)}`, d: path(valued.filter((p) => !p.chosen), 3) }), svg("path", { class: `fill ${color(l)}`, d: path(valued.filter((p) => p.chosen), 3.4) }), svg("path", { class: "ring", d: valued.filter((p) => p.chosen).map((p) => mark(0, p.x, p.y, 6)).join("") }), hotspots(width, height, valued, tell, (p) => openRun(p.run)));
}
