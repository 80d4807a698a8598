// The runs behind a number, in a dialog. They are compressed in the page, and read when the first number is opened.
let behind = null;
async function runsBehind() {
  if (!behind) {
    const bytes = Uint8Array.from(atob(byId("runs").textContent), (c) => c.charCodeAt(0));
    behind = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }
  return behind;
}

let trail = [];
async function openDialog(title, make, again) {
  const dialog = byId("dialog");
  if (!dialog.open) trail = [];
  if (!again) trail.push([title, make]);
  const content = await make();
  byId("dialogtitle").textContent = title;
  byId("dialogbody").replaceChildren(...[content].flat(3).filter(Boolean));
  byId("back").hidden = trail.length < 2;
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
function goBack() {
  trail.pop();
  openDialog(...trail.at(-1), true);
}

const openRow = (row) => openDialog(row.label, () => {
  const rows = view().judged.filter((d) => row.values[d]).map((d) => [
    el("button", { type: "button", class: "run", onclick: () => openCell(row, d) }, nameOf(d)), share(row.shares[d]), valueText(d, row.values[d]),
    valueText(d, results[state.rule][d].get(baseline).values), row.gains[d] && row.r !== baseline ? gainText(d, row.gains[d]) : "–",
  ]);
  const head = [{ text: "dataset" }, "share", "value", D.baseline, `gain over ${D.baseline} [95 %]`];
  const mean = missing(row.mean) ? "It lacks a dataset, and has no mean." : `Mean share ${range(row, share)} over ${plural(view().clear.length, "dataset")}.`;
  return table(`${mean} Values are means over trials with standard errors, by ${state.rule}.`, head, rows, { label: row.label });
});

const openCell = (row, d) => openDialog(`${row.label} on ${nameOf(d)}`, () => (row.r < 0 ? answers(d) : cellRuns(row, d)));

const answers = (d) => table("The best constant answer of the training environments.", ["trial", D.datasets[d].metric], constants[d].map((v, t) => [t, value(d, v)]), { label: "Constant answers" });

async function cellRuns(row, d) {
  const { columns, parts } = await runsBehind(), part = parts[`${d} ${row.r}`], judged = part.rules[state.rule], dataset = D.datasets[d];
  const { runs: chosen } = results[state.rule][d].get(row.r), varied = [], fixed = [];
  for (const [name, place] of Object.entries(part.hparams)) Array.isArray(columns[place]) ? varied.push([name, columns[place]]) : fixed.push([name, columns[place].all]);
  const at = new Map(judged.run.map((run, i) => [run, i])), text = (v) => (typeof v === "string" ? v : Array.isArray(v) || v === null ? JSON.stringify(v) : number(v, false));
  const place = (run) => { const trial = Math.floor(run / dataset.draws); return { draw: run % dataset.draws, trial: trial % dataset.trials, tests: Math.floor(trial / dataset.trials) }; };
  const several = dataset.tests.length > 1;
  const cells = (run) => {
    const i = at.get(run), { draw, trial, tests } = place(run);
    return [trial, ...(several ? [dataset.tests[tests].join("+")] : []), draw === 0 ? "0 (defaults)" : draw, i === undefined ? "–" : judged.value[i] === null ? "diverged" : number(judged.value[i], dataset.percent), i === undefined ? "–" : number(judged.score[i], dataset.percent), i === undefined ? "–" : judged.step[i], ...varied.map(([, values]) => text(values[run]))];
  };
  const head = ["trial", ...(several ? ["test"] : []), "draw", dataset.metric + (dataset.percent ? " (%)" : ""), "score", "step", ...varied.map(([name]) => name)];
  const gain = row.gains[d] && row.r !== baseline ? ` Gain over ${D.baseline}: ${gainText(d, row.gains[d])} ${unitOf(d)}.` : "";
  const about = `${valueText(d, row.values[d])} over ${plural(dataset.trials, "trial")}; the best of ${plural(dataset.draws, "draw")} in each trial, by ${state.rule}: ${D.rules[state.rule].summary}.${gain}`;
  const list = (picked, label) => table("", head, picked.map((run) => ({ cells: cells(run), attributes: { class: chosen.includes(run) && picked.length > chosen.length ? "picked" : null } })), { label });
  const ids = table("", ["trial", "run"], chosen.map((run) => [place(run).trial, el("code", {}, part.ids[run])]), { label: "Ids" });
  return [el("p", { class: "caption" }, about), el("h3", {}, "The chosen runs"), list(chosen, "The chosen runs"),
    drawsChart(judged, chosen, d, place),
    later(`All ${plural(judged.run.length, "run")}`, () => list(judged.run, "All runs")),
    later("Hyperparameters that are the same in all of them", () => el("dl", {}, fixed.map(([k, v]) => [el("dt", {}, k), el("dd", {}, text(v))]))),
    later("Ids of the chosen runs", () => ids)];
}

// What the rule judges by against what it is after: one dot a run, the chosen ones ringed.
function drawsChart(judged, chosen, d, place) {
  const points = judged.run.map((run, i) => ({ run, score: judged.score[i], test: judged.value[i] })).filter((p) => !missing(p.score) && !missing(p.test));
  if (points.length < 3) return null;
  const { percent, metric } = D.datasets[d], width = Math.min(520, Math.max(260, byId("dialogbody").clientWidth || innerWidth - 70)), height = 260;
  const box = { left: 52, right: width - 12, top: 24, bottom: height - 44 }, x = fenced(points.map((p) => p.score), box.left, box.right), y = fenced(points.map((p) => p.test), box.bottom, box.top);
  for (const p of points) { p.x = x(p.score); p.y = y(p.test); }
  const dots = (list, radius) => list.map((p) => mark(0, p.x, p.y, radius)).join("");
  const picked = points.filter((p) => chosen.includes(p.run)), tick = (t) => short(percent ? 100 * t : t), unit = `${metric}${percent ? " (%)" : ""}`;
  const tell = (p) => `trial ${place(p.run).trial}, draw ${place(p.run).draw}\nscore ${number(p.score, percent)}, test ${number(p.test, percent)}`;
  return el("figure", {}, chart(width, height, "Runs by score and test value", axes(x, y, box, { x: tick, y: tick, below: `score of ${state.rule}`, above: `${unit} on the test environments` }), svg("path", { class: "fill faint c0", d: dots(points, 3) }), svg("path", { class: "ring", d: dots(picked, 5) }), hotspots(width, height, points, tell, () => {})),
    el("figcaption", {}, "Each run at the step that the rule chooses; ringed: the best of its trial."));
}
