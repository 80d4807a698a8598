// The leaderboard: of one dataset, or over all.
function boardCells(dataset) {
  const B = rule().board, columns = new Map(), cells = new Map();
  for (let i = 0; i < B.dataset.length; i++) {
    if (B.dataset[i] !== dataset) continue;
    const id = JSON.stringify([B.tests[i], B.environment[i], B.metric[i]]);
    if (!columns.has(id)) columns.set(id, { id, tests: B.tests[i], environment: B.environment[i], metric: B.metric[i], overall: B.overall[i] });
    cells.set(`${B.label[i]} ${id}`, i);
  }
  return { columns: [...columns.values()], at: (l, column) => cells.get(`${l} ${column.id}`) };
}

function columnName(column, columns) {
  if (!column.environment) return column.metric;
  const twins = columns.filter((c) => c.environment === column.environment && c !== column && c.tests);
  return twins.length && column.tests !== column.environment ? `${column.environment} (of ${column.tests})` : column.environment;
}

function means(dataset) {
  const found = new Map(), { columns, at } = boardCells(dataset);
  const column = columns.find((c) => c.overall);
  for (const l of data().labels.keys()) {
    const i = column ? at(l, column) : undefined;
    if (i !== undefined) found.set(l, i);
  }
  return found;
}
const isComplete = (i) => rule().board.n[i] === rule().board.planned[i];
const lastText = (name, i) => rule().columns.find((c) => c.name === name).text[i];
const counted = (i) => lastText("n", i);
// The leaderboard's last columns, of which the page knows nothing; `at` is where the row's mean stands in the board.
const lastColumns = (at) => rule().columns.map((c) => ({ id: JSON.stringify([c.name]), name: c.name, overall: c.overall, cell: (r) => { const i = at(r.label); return i === undefined ? "–" : c.text[i]; } }));

const isSummary = (i) => !rule().board.tests[i] && rule().board.environment[i];
function behind(i) {
  const B = rule().board;
  if (!isSummary(i)) return [B.runs[i], B.values[i]];
  const runs = [];
  for (let j = 0; j < B.dataset.length; j++) {
    if (B.dataset[j] === B.dataset[i] && B.label[j] === B.label[i] && B.tests[j] && B.environment[j]) runs.push(...B.runs[j]);
  }
  return [[...new Set(runs)], null];
}

function numberCell(i, text, classes) {
  const B = rule().board, dataset = data().datasets[B.dataset[i]];
  if (!B.n[i]) return "–";
  const title = `${label(B.label[i])} on ${dataset.name}${B.environment[i] ? `, ${B.environment[i]}` : ""}: ${B.metric[i]} ${B.text[i]}, n = ${counted(i)}`;
  if (!behind(i)[0].length) return { content: text || B.text[i], class: classes }; // the constant answer has no runs
  const open = () => { const [runs, values] = behind(i); openRuns(title, runs, values, B.metric[i] === dataset.metric && dataset.percent); };
  return { content: el("button", { type: "button", onclick: open, "aria-label": `${text || B.text[i]}; runs behind it` }, text || B.text[i]), class: classes };
}

// `best` and, within one standard error of the best, `near`.
function marks(places, higher) {
  const B = rule().board, found = new Map();
  const finite = places.filter((i) => i !== undefined && isComplete(i) && !missing(B.mean[i]));
  if (finite.length < 2) return found;
  const sign = higher ? 1 : -1, best = finite.reduce((a, b) => (sign * B.mean[b] > sign * B.mean[a] ? b : a));
  for (const i of finite) {
    if (B.mean[i] === B.mean[best]) found.set(i, "best");
    else if (!missing(B.error[best]) && Math.abs(B.mean[i] - B.mean[best]) <= B.error[best]) found.set(i, "near");
  }
  return found;
}

function differenceCell(dataset, l) {
  const block = (rule().differences || []).find((b) => b.dataset === dataset);
  const row = block && block.rows.find((r) => r.label === l);
  if (!row || missing(row.gain)) return l === data().baseline ? { content: "baseline", class: "unclear" } : "–";
  const percent = dataset === null || data().datasets[dataset].percent;
  return { content: gainText(row, percent), class: verdict(row) };
}
function gainText(row, percent) {
  if (row.equal) return "equal";
  return signed(row.gain, percent) + (missing(row.low) ? "" : ` [${signed(row.low, percent)}, ${signed(row.high, percent)}]`);
}
const verdict = (row) => (row.low > 0 ? "better" : row.high < 0 ? "worse" : "unclear");

function sorter(id, higherFirst) {
  const active = state.sort === id;
  return {
    sort: id,
    sorted: active ? (state.up ? "ascending" : "descending") : null,
    onclick: () => {
      if (state.sort === id) state.up = !state.up;
      else { state.sort = id; state.up = !higherFirst; }
      saveState();
      render(["leaderboard"]);
      say(`sorted by ${JSON.parse(id)[1] || JSON.parse(id)[2] || JSON.parse(id)[0]}, ${state.up ? "ascending" : "descending"}`);
    },
  };
}

// What is ranked, what is incomplete, what sees test inputs, and what is no method: each part in the order of the chosen column.
const isGrey = (l) => data().grey.includes(l);
const isApart = (l) => data().apart.includes(l);
const isMethod = (l) => !isGrey(l) && !isApart(l);
const part = (row) => (row.grey ? 3 : isApart(row.label) ? 2 : row.ranked ? 0 : 1);
const methods = (places) => [...places].filter(([l]) => isMethod(l)).map(([, i]) => i);
function ordered(rows, columns, standard) {
  const column = columns.find((c) => c.id === state.sort) || standard;
  const up = column.id === state.sort ? state.up : !column.higher;
  const compare = (a, b) => {
    if (part(a) !== part(b)) return part(a) - part(b);
    const x = column.value(a), y = column.value(b);
    if (typeof x === "string") return (up ? 1 : -1) * x.localeCompare(y);
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    return up ? x - y : y - x;
  };
  return rows.sort(compare);
}

function layOut(rows, columns, standard, caption) {
  const sorted = ordered(rows, columns, standard);
  const firstLeft = sorted.findIndex((r) => !r.ranked);
  const body = sorted.map((row, r) => ({
    cells: columns.map((c) => c.cell(row)),
    attributes: { "data-label": label(row.label), class: row.ranked ? null : `${row.grey ? "grey" : "unranked"}${r === firstLeft && r > 0 ? " first-unranked" : ""}` },
  }));
  const head = columns.map((c) => (c.value ? { text: c.name, ...sorter(c.id, c.higher), title: c.title } : { text: c.name, title: c.title }));
  if (!columns.some((c) => c.id === state.sort)) {
    const place = columns.indexOf(standard);
    head[place].sorted = standard.higher ? "descending" : "ascending";
  }
  return table(caption, head, body, { class: "board", label: "Leaderboard" });
}

const nameColumn = () => ({ id: '["algorithm"]', name: "algorithm", higher: false, value: (r) => label(r.label), cell: (r) => [label(r.label) + (isApart(r.label) ? " (transductive)" : "")] });

function datasetBoard(d) {
  const dataset = data().datasets[d], B = rule().board, { columns, at } = boardCells(d), overall = means(d);
  const visible = columns.filter((c) => !c.overall || columns.filter((x) => x.tests && x.environment).length > 1);
  const rows = shown().filter((l) => overall.has(l)).map((l) => ({ label: l, grey: isGrey(l), ranked: isMethod(l) && isComplete(overall.get(l)) }));
  const everyone = [...overall.keys()].filter(isMethod);
  const made = visible.map((c) => {
    const higher = rule().higher[c.metric] ?? false, marked = marks(everyone.map((l) => at(l, c)), higher);
    const value = (r) => { const i = at(r.label, c); return i === undefined ? null : B.mean[i]; };
    return { id: c.id, name: columnName(c, columns), higher, value, title: `${c.metric}: ${higher ? "higher" : "lower"} is better`, overall: c.overall, cell: (r) => { const i = at(r.label, c); return i === undefined ? "–" : numberCell(i, "", marked.get(i)); } };
  });
  const all = [nameColumn(), ...made];
  if (data().baseline !== null) all.push({ id: "d", name: `gain over ${label(data().baseline)} [95 %]`, cell: (r) => differenceCell(d, r.label) });
  all.push(...lastColumns((l) => overall.get(l)));
  const standard = made.find((c) => c.overall) || made[0] || all[0];
  const names = dataset.classes.length > 10 ? [dataset.classes[0], "…", dataset.classes.at(-1)] : dataset.classes;
  const classes = names.length ? `; ${dataset.classes.length} classes: ${names.join(", ")}` : "";
  return layOut(rows, all, standard, `${dataset.name}: ${dataset.metric ? unit(dataset) : "nothing recorded yet"}${classes}`);
}

function summaryBoard() {
  const B = rule().board, datasets = data().datasets, all = datasets.map((_, d) => means(d)), ranks = rule().ranks;
  const rows = shown().map((l) => ({ label: l, grey: isGrey(l), ranked: isMethod(l) && all.every((a) => a.has(l) && isComplete(a.get(l))) }));
  const columns = [nameColumn(), ...datasets.map((dataset, d) => {
    const marked = marks(methods(all[d]), dataset.higher);
    const at = (r) => all[d].get(r.label);
    return { id: JSON.stringify([d, dataset.name]), name: dataset.name + (dataset.percent ? " (%)" : ""), higher: dataset.higher, title: unit(dataset), value: (r) => (at(r) === undefined ? null : B.mean[at(r)]), cell: (r) => (at(r) === undefined ? "–" : numberCell(at(r), B.text[at(r)] + (isComplete(at(r)) ? "" : ` (${counted(at(r))})`), marked.get(at(r)))) };
  })];
  const shares = datasets.map((x, d) => (x.percent ? d : -1)).filter((d) => d >= 0);
  if (shares.length > 1) {
    const mean = (r) => { const v = shares.map((d) => all[d].get(r.label)); return v.every((i) => i !== undefined && isComplete(i) && !missing(B.mean[i])) ? v.reduce((s, i) => s + B.mean[i], 0) / v.length : null; };
    columns.push({ id: '["mean (%)"]', name: "mean (%)", higher: true, value: mean, cell: (r) => number(mean(r), true) });
    if (data().baseline !== null) columns.push({ id: "d", name: `gain over ${label(data().baseline)} [95 %]`, cell: (r) => differenceCell(null, r.label) });
  }
  let standard = columns[1];
  if (ranks && ranks.labels && ranks.by === "dataset") {
    const rank = new Map(ranks.labels.map((l, i) => [l, ranks.mean[i]]));
    standard = { id: '["mean rank"]', name: "mean rank", higher: false, value: (r) => rank.get(r.label), cell: (r) => (rank.has(r.label) ? rank.get(r.label).toFixed(2) : "–") };
    columns.push(standard);
  }
  columns.push(...lastColumns((l) => all.map((a) => a.get(l)).find((i) => i !== undefined)).filter((c) => c.overall));
  return layOut(rows, columns, standard, "Means over the test environments of every dataset. Mean rank: over the datasets.");
}

function showLeaderboard() {
  if (!shown().length) return [empty(`No algorithm matches “${state.filter}”.`)];
  const board = state.dataset < 0 && data().datasets.length > 1 ? summaryBoard() : datasetBoard(detail());
  const several = new Set(data().runs.trial).size > 1;
  const findings = rule().findings.map((text) => el("p", { class: "alert" }, text));
  return [board, ...findings, el("p", { class: "caption" }, `${several ? "Mean ± standard error over trials (ddof = 1). " : "One trial: no error can be told. "}`, el("span", { class: "best" }, "Best"), " and ", el("span", { class: "near" }, "within one standard error of the best"), " are marked among complete rows. Grey rows are not ranked: incomplete ones, which lack trials (such as 4/5) or a dataset; transductive methods, whose predictions depend on other test inputs; and, in italics, constant answers and ceilings, which are no methods. ", "Every number opens the runs behind it.")];
}
