// The runs behind a number: a list in a dialog, and the facts of one run.
const D = { now: null };
const state = { rule: "", dataset: -1, filter: "", sort: "", up: false, hparamsOf: -1, tests: -1, splits: false };

const data = () => D.now;
const rule = () => data().rules[state.rule];
const label = (i) => data().labels[i];
const testsName = (i) => data().tests[i].join("+");
const detail = () => (state.dataset >= 0 ? state.dataset : 0);
const shown = () => {
  const words = state.filter.toLowerCase().split(/[,;]+/).map((w) => w.trim()).filter(Boolean);
  const all = data().labels.map((_, i) => i);
  return words.length ? all.filter((i) => words.some((w) => label(i).toLowerCase().includes(w))) : all;
};
const shownSet = () => new Set(shown());

function pointOf(run) {
  const points = rule().points;
  const place = points ? points.run.indexOf(run) : -1;
  if (place < 0) return null;
  return { step: points.step[place], score: points.score[place], inside: points.inside[place], test: points.test[place], chosen: points.chosen[place] };
}

let trail = [];
function openDialog(title, make, again) {
  const dialog = byId("dialog");
  if (!dialog.open) trail = [];
  if (!again) trail.push([title, make]);
  byId("dialogtitle").textContent = title;
  byId("dialogbody").replaceChildren(...[make()].flat(3).filter(Boolean));
  byId("back").hidden = trail.length < 2;
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
function goBack() {
  trail.pop();
  openDialog(...trail[trail.length - 1], true);
}

// `values`, if given, are the cell's own values, one a run.
function openRuns(title, runs, values, percent) {
  openDialog(title, () => runList(runs, values, percent));
}

const LIMIT = 500;
const KINDS = [
  ["dataset", (run) => data().datasets[data().runs.dataset[run]].name],
  ["algorithm", (run) => label(data().runs.label[run])],
  ["test environments", (run) => testsName(data().runs.tests[run])],
  ["state", (run) => data().states[data().runs.state[run]]],
];

// What all the runs share is said once, above; the numbers come first.
function runList(runs, values, percent) {
  const R = data().runs;
  if (!runs.length) return empty("No run behind this number has ended yet.");
  const differ = KINDS.filter(([, of]) => runs.some((run) => of(run) !== of(runs[0])));
  const shared = KINDS.filter((kind) => !differ.includes(kind)).map(([name, of]) => `${name} ${of(runs[0])}`);
  const rows = runs.slice(0, LIMIT).map((run, i) => {
    const share = data().datasets[R.dataset[run]].percent, point = pointOf(run);
    const cells = [
      el("button", { type: "button", class: "run", onclick: () => openRun(run) }, el("code", {}, R.id[run])),
      number(values ? values[i] : point && point.test, values ? percent : share),
      number(point && point.score, share), point ? point.step : "–", R.draw[run], R.trial[run],
      ...differ.map(([, of]) => ({ content: of(run), class: "text" })),
    ];
    return { cells, attributes: { class: !values && point && point.chosen ? "picked" : null } };
  });
  const head = ["run", "value", "score", "step", "draw", "trial", ...differ.map(([name]) => ({ text: name, class: "text" }))];
  const more = runs.length > LIMIT ? ` The first ${LIMIT} of ${runs.length} are listed.` : "";
  const caption = `${plural(runs.length, "run")}${shared.length ? `; ${shared.join(", ")}` : ""}. Value: on the test environments; score: what ${state.rule} judges by; both at the step where it stops the run.${values ? "" : " Chosen runs are marked."}${more}`;
  return table(caption, head, rows, { label: "runs" });
}

function openRun(run) {
  openDialog(`Run ${data().runs.id[run]}`, () => runFacts(run));
}

function runFacts(run) {
  const R = data().runs, dataset = data().datasets[R.dataset[run]], point = pointOf(run);
  const facts = [
    ["directory", el("code", {}, `runs/${R.id[run]}`)], ["dataset", dataset.name], ["algorithm", label(R.label[run])],
    ["test environments", testsName(R.tests[run])], ["hparam draw", R.draw[run] === 0 ? "0 (the defaults)" : R.draw[run]], ["trial", R.trial[run]],
    ["state", data().states[R.state[run]]], ["last record", `step ${R.step[run]}`],
  ];
  if (data().reasons[run]) facts.push(["reason", data().reasons[run]]);
  if (!missing(R.seconds[run])) facts.push(["training", `${number(R.seconds[run])} s`]);
  if (!missing(R.waited[run])) facts.push(["waiting for data", `${number(R.waited[run])} s of it`]);
  if (!missing(R.memory[run])) facts.push(["memory", `${number(R.memory[run])} MiB`]);
  if (point) {
    facts.push([`under ${state.rule}`, `step ${point.step}, score ${number(point.score, dataset.percent)}${point.chosen ? ": chosen in its trial" : ": not chosen"}`]);
    facts.push([dataset.metric + (dataset.percent ? " (%)" : ""), `${number(point.test, dataset.percent)} on the test environments, ${number(point.inside, dataset.percent)} in distribution`]);
  }
  const list = (pairs) => el("dl", {}, pairs.map(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
  const plain = (object) => Object.entries(object).map(([k, v]) => [k, typeof v === "string" ? v : JSON.stringify(v)]);
  return el("div", {}, list(facts), el("h3", {}, "Hyperparameters"), list(plain(data().hparams[R.hparams[run]])), el("h3", {}, "Provenance"), list(plain(data().provenance[R.provenance[run]])));
}
