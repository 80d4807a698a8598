// What the reader has chosen, and everything that follows from it.
const D = JSON.parse(byId("data").textContent);
const baseline = D.rows.findIndex((row) => row.label === D.baseline);
const state = { rule: D.rule, off: new Set(), filter: "", cells: "share", sort: "mean", up: false, gainsOf: -1 };

const labelOf = (r) => D.rows[r].label;
const isKind = (r, kind) => D.rows[r].kind === kind;
const nameOf = (d) => D.datasets[d].name;
const signs = D.datasets.map((dataset) => (dataset.higher ? 1 : -1));

// By rule, dataset and row: {values: signed, by trial; runs: the chosen ones}.
const results = Object.fromEntries(Object.entries(D.rules).map(([name, { results: list }]) => {
  const table = D.datasets.map(() => new Map());
  for (const [d, r, values, runs] of list) table[d].set(r, { values: values.map((v) => (v === null ? -Infinity : signs[d] * v)), runs });
  return [name, table];
}));
const constants = D.answer.map((values, d) => values && values.map((v) => (v === null ? NaN : signs[d] * v)));
const seconds = D.datasets.map(() => new Map());
for (const [d, r, cost, alone] of D.costs) seconds[d].set(r, { cost, alone });

function wordsMatch(r) {
  const words = state.filter.toLowerCase().split(/[,;]+/).map((w) => w.trim()).filter(Boolean);
  return !words.length || r === baseline || words.some((w) => labelOf(r).toLowerCase().includes(w));
}

// The numbers for a rule, some datasets and some rows. Rows that lack a dataset have no mean; transductive ones and the constant answer
// have no place.
function computed(rule, off, rows) {
  const table = results[rule];
  const ceiling = (d) => [...table[d].keys()].find((r) => isKind(r, "ceiling"));
  const judged = D.datasets.map((_, d) => d).filter((d) => !off.has(d) && table[d].has(baseline));
  const rooms = D.datasets.map((_, d) => headRoom(table[d].get(ceiling(d))?.values, table[d].get(baseline)?.values, D.constants.clear));
  const clear = judged.filter((d) => rooms[d] && rooms[d].clear);
  const view = { rule, judged, rooms, clear, ceiling, cells: new Map(), methods: [], apart: [] };
  const shown = rows.filter((r) => judged.some((d) => table[d].has(r)));
  for (const r of shown) {
    const row = rowOf(view, r, (d) => table[d].get(r)?.values, table);
    if (isKind(r, "method")) view.methods.push(row);
    else if (isKind(r, "transductive")) view.apart.push(row);
  }
  if (judged.some((d) => constants[d])) view.apart.push(rowOf(view, -1, (d) => constants[d], table));
  correct(view);
  place(view);
  return view;
}

function rowOf(view, r, values, table) {
  const row = { r, label: r < 0 ? "constant" : labelOf(r), shares: [], gains: [], values: [], mean: NaN };
  for (const d of view.judged) {
    const own = values(d), base = table[d].get(baseline)?.values;
    if (!own) continue;
    row.values[d] = own;
    if (!base) continue;
    const differences = own.map((v, t) => v - base[t]);
    row.gains[d] = { ...estimate(differences, D.half_widths), equal: differences.every((v) => v === 0) };
    if (view.clear.includes(d)) row.shares[d] = shareOf(own, base, view.rooms[d]);
  }
  const ratios = view.judged.filter((d) => seconds[d].has(r)).map((d) => seconds[d].get(r).cost / seconds[d].get(baseline)?.cost).sort((a, b) => a - b);
  row.cost = ratios.length ? quantile(ratios, 0.5) : NaN;
  row.alone = 2 * view.judged.filter((d) => seconds[d].get(r)?.alone).length > ratios.length;
  row.whole = (view.clear.length ? view.clear : view.judged).every((d) => row.values[d]);
  if (view.clear.length && row.whole) row.mean = boundedMean(view.clear.map((d) => row.shares[d]), D.constants.floor);
  return row;
}

// The signs of gains after Holm's correction over all methods and datasets that are shown.
function correct(view) {
  const tests = view.methods.filter((row) => row.r !== baseline).flatMap((row) => view.judged.filter((d) => row.gains[d]).map((d) => row.gains[d]));
  afterHolm(tests).forEach((sign, i) => { tests[i].sign = sign; });
}

// Intervals of the means, and places; the transductive rows and the constant answer are resampled by themselves.
function place(view) {
  if (!view.clear.length) return;
  const ranked = view.methods.filter((row) => row.whole).sort((a, b) => (b.r === baseline) - (a.r === baseline));
  const resample = (rows) => resampled(view.clear.map((d) => ({ values: rows.map((row) => row.values[d]), room: view.rooms[d] })), rows.length, D.constants.floor, D.constants.resamples);
  const intervals = (rows, table) => rows.forEach((row, i) => { [row.low, row.high] = intervalOf(column(table, rows.length, i)); });
  if (!ranked.length || ranked[0].r !== baseline) return;
  const table = resample(ranked);
  intervals(ranked, table);
  placesOf(ranked.map((row) => row.mean), table).forEach(({ place: own, low, high, first }, i) => Object.assign(ranked[i], { place: own, lowPlace: low, highPlace: high, first }));
  const others = [...view.methods, ...view.apart].filter((row) => !ranked.includes(row) && !Number.isNaN(row.mean));
  if (others.length) intervals([ranked[0], ...others], resample([ranked[0], ...others]));
  view.ranked = ranked.length;
}

let known = { key: "", view: null };
function view() {
  const key = JSON.stringify([state.rule, [...state.off], state.filter]);
  if (known.key !== key) known = { key, view: computed(state.rule, state.off, D.rows.map((_, r) => r).filter(wordsMatch)) };
  return known.view;
}
const rowAt = (r) => [...view().methods, ...view().apart].find((row) => row.r === r);

// Texts of numbers: shares with two digits, values in the dataset's unit, with a real minus sign.
const share = (v) => (missing(v) ? "–" : v === -Infinity ? "−∞" : (Math.abs(v) < 0.005 ? 0 : v).toFixed(2).replace("-", "−"));
const value = (d, signed_) => (signed_ === -Infinity ? "diverged" : number(signs[d] * signed_, D.datasets[d].percent));
const unitOf = (d) => (D.datasets[d].percent ? "points" : D.datasets[d].metric);
const gainText = (d, g) => (g.equal ? `equal to ${D.baseline}` : `${signed(g.mean, D.datasets[d].percent)} [${signed(g.low, D.datasets[d].percent)}, ${signed(g.high, D.datasets[d].percent)}]`);
const range = (row, text) => (missing(row.low) ? text(row.mean) : `${text(row.mean)} [${text(row.low)}, ${text(row.high)}]`);
const valueText = (d, values) => { const { mean, error } = meanAndError(values); return `${value(d, mean)}${Number.isFinite(error) ? ` ± ${number(error, D.datasets[d].percent, 2)}` : ""}`; };
