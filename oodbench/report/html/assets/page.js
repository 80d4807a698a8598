"use strict";
// Draws the numbers of the page; everything that is computed was computed before, in Python.
const D = JSON.parse(document.getElementById("data").textContent);
const state = { rule: D.rule, view: "", count: "10", filter: "", cells: "", sort: "" };
const VALUE = 0, SHARE = 1, GAIN = 2, COLOUR = 3, SIGN = 4, FACTS = 5, RUNS = 6;

const byId = (id) => document.getElementById(id);
const rule = () => D.rules[state.rule];
const view = () => rule().views.find((v) => v.name === state.view) || rule().views[0];
const label = (r) => D.rows[r].label;

// Texts are always set as text, never as markup.
function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === "") continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined));
  return node;
}
const button = (text, onclick, name) => el("button", { type: "button", "aria-label": name, onclick }, text);

// The rows of the view that are named, or the best ones with the baseline and the reader's own.
function shownRows() {
  const words = state.filter.toLowerCase().split(/[,;]+/).map((word) => word.trim()).filter(Boolean);
  const all = view().rows.map(([r, mean, low, high, texts, ranked], place) => ({ r, mean, low, high, texts, ranked, place }));
  if (words.length) return all.filter((row) => words.some((word) => label(row.r).toLowerCase().includes(word)));
  if (state.count === "all") return all;
  return all.filter((row) => row.place < Number(state.count) || isBase(row.r) || D.rows[row.r].own);
}
const isBase = (r) => label(r) === D.baseline;
const missing = (value) => value === null || value === undefined;

function showPicture() {
  const { picture, axis: [low, high, ticks], marks } = view();
  const rows = shownRows().filter((row) => !missing(row.mean));
  if (!picture || !rows.length) return [];
  const at = (value) => Math.min(100, Math.max(0, (100 * (value - low)) / (high - low)));
  const lines = () => marks.map(([, value]) => el("i", { class: "mark", style: { left: `${at(value)}%` } }));
  const side = (row) => (!marks.length || missing(row.low) ? "" : row.low > 0 ? "better" : row.high < 0 ? "worse" : "");
  const bar = (row) => {
    const ends = missing(row.low) ? null : { left: `${at(row.low)}%`, width: `${at(row.high) - at(row.low)}%` };
    const parts = [ends && el("i", { class: "interval", style: ends }), el("i", { class: "dot", style: { left: `${at(row.mean)}%` } })];
    return line(name(row.r), el("span", { class: `track ${side(row)}` }, lines(), parts), row.texts[0], D.rows[row.r].own ? "own" : "");
  };
  const scale = (values, className) => line("", el("span", { class: "track" }, values.map(([text, value]) => el("span", { style: { left: `${at(value)}%` } }, text))), "", className);
  return [
    el("h2", {}, picture),
    el("ol", { class: "bars" }, marks.length ? scale(marks, "names") : null, rows.map(bar), scale(ticks.map((tick) => [String(tick).replace("-", "−"), tick]), "ticks")),
  ];
}
function line(first, track, text, className) {
  const hidden = className === "ticks" || className === "names" ? "true" : null;
  return el("li", { class: className, "aria-hidden": hidden }, el("span", { class: "name" }, first), track, el("span", { class: "text" }, text));
}
function name(r) {
  const alone = view().datasets.length === 1;
  return button(label(r), () => (alone ? openCell(r, view().datasets[0]) : openRow(r)));
}

const short = (text) => text.split(/ [[±]/)[0];
const number = (text) => (text === "equal" ? 0 : text.includes("∞") ? -Infinity : parseFloat(text));

// A column: its title, the text of a row, and whether a larger number comes first.
function columns() {
  const v = view(), alone = v.datasets.length === 1;
  const first = [{ key: "name", text: "algorithm", of: (row) => label(row.r) }];
  const texts = v.head.map((title, i) => ({ key: title, kind: !i && v.picture ? "drawn" : "", text: title, of: (row) => row.texts[i], down: !["place", "mean rank"].includes(title) }));
  const cells = v.datasets.map((d) => ({ key: `d${d}`, text: alone ? D.datasets[d].metric : D.datasets[d].name, d, of: (row) => cellText(d, row.r), down: Number(state.cells) !== VALUE || D.datasets[d].higher }));
  const environments = alone ? rule().environments[v.datasets[0]] : [];
  const tests = environments.map((e, i) => ({ key: `e${i}`, text: e.name, of: (row) => e.texts[row.r], down: D.datasets[v.datasets[0]].higher }));
  return [...first, ...texts, ...cells, ...tests];
}
function cellText(d, r) {
  const cell = rule().cells[d][r];
  return cell ? cell[Number(state.cells)] || "-" : "·";
}

function sorted(rows, all) {
  const key = state.sort.replace(/^-/, ""), column = all.find((c) => c.key === key);
  if (!column) return rows;
  const sign = state.sort.startsWith("-") ? -1 : 1;
  return rows.slice().sort((a, b) => {
    const [x, y] = [column.of(a), column.of(b)];
    if (column.key === "name") return sign * x.localeCompare(y);
    const [m, n] = [number(x), number(y)];
    if (Number.isNaN(m) || Number.isNaN(n)) return Number.isNaN(m) - Number.isNaN(n);
    return sign * (m - n);
  });
}

function showTable() {
  const all = columns(), alone = view().datasets.length === 1, rows = sorted(shownRows(), all);
  const head = all.map((c) => el("th", { scope: "col", class: c.d === undefined ? c.kind : "dataset", "aria-sort": { [c.key]: "ascending", [`-${c.key}`]: "descending" }[state.sort] }, sorter(c)));
  const body = rows.map((row) => {
    const kind = isBase(row.r) ? "base" : D.rows[row.r].own ? "own" : row.ranked ? "" : "apart";
    const cells = all.slice(1).map((c) => (c.d === undefined ? el("td", { class: c.kind }, c.of(row)) : drawCell(row.r, c.d, alone)));
    return el("tr", { class: kind, "data-label": label(row.r) }, el("th", { scope: "row" }, name(row.r)), cells);
  });
  const hidden = view().rows.length - rows.length;
  const more = hidden && !state.filter ? button(`Show all ${view().rows.length} rows`, () => change("count", "all")) : null;
  const grey = "Grey rows have no place: they lack runs, see test inputs, or are no methods. ";
  const terms = view().head.includes("P(better)") ? `Place: the rank by mean, with its 95 % interval. P(better): in how many of the resamples a row is better than ${D.baseline}. ` : "";
  const note = `${terms}${alone ? "" : "Blue is better than the baseline, orange worse. "}Bold and underlined: also after Holm's correction over all rows and datasets. ${view().note} ${grey}A number opens its runs.`;
  const selected = `Selected by ${state.rule}${D.cost ? `: ${D.cost}` : ""}.`;
  return [el("h2", {}, alone ? `Results on ${view().name}` : "Results"), el("p", { class: "note" }, selected), scrolled("wide", head, body), more, el("p", { class: "note" }, note)];
}
function sorter(column) {
  const next = state.sort === (column.down ? `-${column.key}` : column.key) ? (column.down ? column.key : `-${column.key}`) : (column.down ? `-${column.key}` : column.key);
  return button(column.text, () => change("sort", next), `sort by ${column.text}`);
}
function drawCell(r, d, whole) {
  const cell = rule().cells[d][r];
  if (!cell) return el("td", { class: "cell" }, "·");
  const colour = cell[COLOUR], text = cellText(d, r);
  const className = `cell ${missing(colour) ? "" : colour < 0 ? "down" : "up"}`;
  const style = missing(colour) ? {} : { "--p": `${Math.round(55 * Math.abs(colour) ** 0.8)}%` };
  const says = `${label(r)} on ${D.datasets[d].name}: ${cell[VALUE]}${cell[GAIN] ? `, gain ${cell[GAIN]}` : ""}`;
  const made = button(whole ? text : short(text), () => openCell(r, d), says);
  if (cell[SIGN]) made.className = "sure";
  return el("td", { class: className, style }, made);
}
function scrolled(className, head, body) {
  const made = el("table", { class: className }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, made);
}
function table(header, rows) {
  const head = header.map((text) => el("th", { scope: "col" }, text));
  const body = rows.map((row) => el("tr", {}, row.map((text, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: typeof text === "string" && /^[a-z]/i.test(text) ? "words" : "" }, text))));
  return scrolled("", head, body);
}

function open(title, ...content) {
  byId("dialogtitle").textContent = title;
  byId("dialogbody").replaceChildren(...content.flat(3).filter(Boolean));
  if (!byId("dialog").open) byId("dialog").showModal();
}
function openCell(r, d) {
  const cell = rule().cells[d][r], dataset = D.datasets[d], title = `${label(r)} on ${dataset.name}`;
  if (!cell) return open(title, el("p", {}, "No run is complete."));
  const facts = [[dataset.metric, cell[VALUE]], ["share of the gap", cell[SHARE]], [`gain over ${D.baseline}`, cell[GAIN]], ...cell[FACTS]];
  const list = el("dl", {}, facts.filter(([, text]) => text).map(([key, text]) => [el("dt", {}, key), el("dd", {}, text)]));
  const [tests, ties, trials, draws, steps, scores, values] = cell[RUNS].length ? cell[RUNS] : [[], [], [], [], [], [], []];
  const shown = (value) => (missing(value) ? "-" : dataset.percent ? (100 * value).toFixed(1) : String(value));
  const drawn = (i) => (ties[i] > 1 ? `${draws[i]} (+${ties[i] - 1})` : String(draws[i]));
  const rows = trials.map((trial, i) => [String(trial), drawn(i), String(steps[i]), shown(scores[i]), shown(values[i]), ...(tests.length ? [tests[i]] : [])]);
  const command = `python -m oodbench.report why ${D.source} --dataset '${dataset.name}' --algorithm '${label(r)}' --rule ${state.rule}`;
  const more = [el("p", { class: "note" }, "All runs, their hyperparameters and ids: "), el("code", {}, command)];
  return open(title, list, rows.length ? [el("p", { class: "note" }, `The runs that ${state.rule} chose; value: on the test environments.${ties.length ? " Behind +: the draws with an equal score; the value is the mean of all." : ""}`), table(["trial", "draw", "step", "score", "value", ...(tests.length ? ["test environment"] : [])], rows), more] : null);
}
function openRow(r) {
  const rows = view().datasets.filter((d) => rule().cells[d][r]).map((d) => {
    const cell = rule().cells[d][r];
    return [button(D.datasets[d].name, () => openCell(r, d)), cell[VALUE], cell[SHARE] || "-", cell[GAIN] || "-"];
  });
  open(label(r), table(["dataset", "value", "share of the gap", `gain over ${D.baseline}`], rows));
}

function showMore() {
  const folded = ({ title, note, header, rows }) => el("details", {}, el("summary", {}, title), el("p", { class: "note" }, note), table(header, rows));
  return D.tables.map(folded);
}
function showRuns() {
  const counts = Object.entries(D.states).map(([name, count]) => `${count.toLocaleString("en")} ${name}`).join(", ");
  const wrong = D.unfinished.length ? el("details", {}, el("summary", {}, `Runs that did not end well (${D.unfinished.length})`), table(["run", "dataset", "algorithm", "state", "reason"], D.unfinished)) : null;
  return [el("h2", {}, "Runs"), el("p", {}, `${counts}.`), wrong];
}
function showNotes() {
  return [el("h2", {}, "Notes"), rule().notes.map((note) => el("p", { class: "note" }, note))];
}

const SECTIONS = { picture: showPicture, table: showTable, more: showMore, runs: showRuns, notes: showNotes };
function render() {
  if (!rule()) {
    byId("finding").textContent = Object.values(D.errors)[0] || "No run is complete yet.";
    return byId("runs").replaceChildren(...showRuns().flat(3).filter(Boolean));
  }
  const focus = document.activeElement, place = focus && focus.closest("section") ? [focus.closest("section").id, focus.textContent] : null;
  if (!state.cells) state.cells = rule().cells.some((cells) => cells.some((c) => c && c[SHARE])) ? String(SHARE) : String(VALUE);
  byId("asked").textContent = rule().asked;
  byId("finding").textContent = view().finding;
  for (const [id, show] of Object.entries(SECTIONS)) byId(id).replaceChildren(...show().flat(3).filter(Boolean));
  const options = { rule: Object.keys(D.rules), view: rule().views.map((v) => v.name) };
  for (const [id, names] of Object.entries(options)) byId(id).replaceChildren(...names.map((text) => el("option", { value: text }, text)));
  state.view = view().name;
  for (const id of ["rule", "view", "count", "cells", "filter"]) byId(id).value = state[id];
  if (place) [...byId(place[0]).querySelectorAll("button")].find((b) => b.textContent === place[1])?.focus();
}
function change(key, value) {
  state[key] = value;
  history.replaceState(null, "", `#${new URLSearchParams(state)}`);
  render();
}
function load() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(state)) if (kept.has(key)) state[key] = kept.get(key);
  if (!(state.rule in D.rules)) state.rule = D.rule;
}

byId("title").textContent = D.title;
for (const id of ["rule", "view", "count", "cells", "filter"]) byId(id).addEventListener(id === "filter" ? "input" : "change", (e) => change(id, e.target.value));
byId("theme").addEventListener("change", (e) => { document.documentElement.dataset.theme = e.target.value; });
byId("controls").addEventListener("submit", (e) => e.preventDefault());
byId("dialog").addEventListener("click", (e) => { if (e.target === byId("dialog")) byId("dialog").close(); });
addEventListener("hashchange", () => { load(); render(); });
load();
render();
