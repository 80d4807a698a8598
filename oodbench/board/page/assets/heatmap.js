// The heat map: rows by datasets, each cell the share of the gap that a row closes; and beside it means and places.
const NARROW = 760;

const COLUMNS = {
  name: { text: "algorithm", value: (row) => row.label, up: true },
  mean: { text: "mean share", value: (row) => row.mean },
  place: { text: "place", value: (row) => row.place, up: true },
  first: { text: "P(first)", value: (row) => row.first },
  wins: { text: "gains / losses", value: (row) => counted(row, 1) - counted(row, -1) },
};
const counted = (row, sign) => row.gains.filter((g) => g && g.sign === sign).length;

function sorted(rows) {
  const d = Number(state.sort), own = COLUMNS[state.sort];
  const of = own ? own.value : (row) => (row.values[d] ? meanOf(row.values[d]) : NaN);
  return rows.slice().sort((a, b) => {
    const x = of(a), y = of(b);
    if (typeof x === "string") return (state.up ? 1 : -1) * x.localeCompare(y);
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    return x === y ? 0 : (state.up ? 1 : -1) * (x < y ? -1 : 1);
  });
}

function sortButton(key, text, up) {
  const click = () => { state.up = state.sort === key ? !state.up : Boolean(up); state.sort = key; saveState(); render(["gap"]); say(`sorted by ${text}`); };
  return el("button", { type: "button", "data-key": key, onclick: click }, text);
}
const sortedBy = (key) => (state.sort === key ? (state.up ? "ascending" : "descending") : null);

// How much of the colour of gains or losses a cell has, in %; shares beyond -1 and 1 have all.
const strength = (v) => Math.round(82 * Math.min(1, Math.abs(v) / 1) ** 0.8);

function heatCell(row, d) {
  const own = row.values[d];
  if (!own) return el("td", { class: "none", title: `${row.label} has not been run on ${nameOf(d)}` }, "·");
  const v = row.shares[d], text = state.cells === "value" || v === undefined ? value(d, meanOf(own)) : Number.isFinite(v) && Math.abs(v) >= 9.995 ? v.toFixed(1).replace("-", "−") : share(v);
  const cell = el("td", { class: v === undefined ? "bare" : v < 0 ? "down" : "up" });
  if (v !== undefined) { cell.style.setProperty("--p", `${strength(v)}%`); cell.classList.toggle("strong", strength(v) > 62); }
  const sign = row.gains[d] && row.gains[d].sign, beyond = v > 1.005 ? "▴" : v < -1.005 ? "▾" : "";
  const facts = `${row.label} on ${nameOf(d)}\n${D.datasets[d].metric} ${valueText(d, own)}${v === undefined ? "" : `\nshare of the gap ${share(v)}`}${row.gains[d] && row.r !== baseline ? `\ngain ${gainText(d, row.gains[d])} ${unitOf(d)}` : ""}${sign ? "\nbeyond chance after Holm's correction" : ""}`;
  const button = el("button", { type: "button", "aria-label": facts.replaceAll("\n", ", "), onclick: () => openCell(row, d), onpointermove: (e) => showTip(e, facts), onpointerleave: hideTip }, el("span", { class: "wide" }, text), beyond ? el("span", { class: "mark" }, beyond) : null);
  if (sign) cell.classList.add("sure");
  cell.append(button);
  return cell;
}

function heatRow(row) {
  const place = missing(row.place) ? "–" : `${row.place} [${row.lowPlace}, ${row.highPlace}]`;
  const mean = el("td", { class: "mean" }, missing(row.mean) ? "–" : el("button", { type: "button", onclick: () => openRow(row) }, share(row.mean), missing(row.low) || row.r === baseline ? null : el("span", { class: "wide soft" }, ` [${share(row.low)}, ${share(row.high)}]`)));
  const isMethod = row.r >= 0 && isKind(row.r, "method");
  const gains = isMethod && row.r !== baseline ? `${counted(row, 1)} / ${counted(row, -1)}` : "–";
  return el("tr", { "data-label": row.label, class: row.r === baseline ? "base" : null },
    el("th", { scope: "row" }, el("button", { type: "button", onclick: () => openRow(row) }, breakable(row.label))), mean,
    el("td", { class: "wide" }, place), el("td", { class: "wide" }, missing(row.first) ? "–" : row.first.toFixed(2)), el("td", { class: "wide" }, gains),
    view().judged.map((d) => heatCell(row, d)));
}

function heatHead() {
  const plain = Object.entries(COLUMNS).map(([key, { text, up }]) => el("th", { scope: "col", class: ["name", "mean"].includes(key) ? key : "wide", "aria-sort": sortedBy(key) }, sortButton(key, text, up)));
  const datasets = view().judged.map((d) => el("th", { scope: "col", class: `dataset${view().clear.includes(d) ? "" : " unclear"}`, "aria-sort": sortedBy(String(d)) }, sortButton(String(d), nameOf(d))));
  return el("thead", {}, el("tr", {}, plain, datasets));
}

function heatTable(rows, label) {
  const widths = el("colgroup", {}, el("col", { class: "name" }), el("col", { class: "mean" }), el("col", { class: "place wide" }), el("col", { class: "first wide" }), el("col", { class: "wins wide" }), view().judged.map(() => el("col", {})));
  const room = (bodyWidth() - 530) / view().judged.length, word = Math.max(...view().judged.flatMap((d) => nameOf(d).split(" ").map((text) => text.length)));
  const made = el("table", { class: `heat${room < 6.6 * word + 6 ? " upright" : ""}`, "aria-label": label }, widths, heatHead(), el("tbody", {}, rows.map(heatRow)));
  made.style.maxWidth = `${530 + 120 * view().judged.length}px`;
  return made;
}

function heatKey() {
  const steps = [-1, -0.75, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 0.75, 1].map((v) => { const box = el("span", { class: v < 0 ? "down" : "up" }); box.style.setProperty("--p", `${strength(v)}%`); return box; });
  return el("p", { class: "heatkey", "aria-hidden": "true" }, "−1 or less", el("span", { class: "ramp" }, steps), "1, the ceiling");
}

function summary() {
  const { clear, judged, methods, ranked, rooms } = view();
  if (!clear.length) return "No dataset that is chosen has a ceiling clear of its error: cells are values.";
  const best = methods.filter((row) => !missing(row.place)).sort((a, b) => a.place - b.place)[0], base = rowAt(baseline);
  const unclear = judged.filter((d) => !clear.includes(d)), likely = methods.filter((row) => row.first >= 0.05).sort((a, b) => b.first - a.first);
  const above = methods.filter((row) => row.r !== baseline && row.low > 0).map((row) => row.label);
  const parts = [`By ${state.rule} on ${plural(clear.length, "dataset")}, ${plural(ranked, "row")} ${ranked === 1 ? "has" : "have"} every one.`];
  if (best && ranked > 1) parts.push(`The first is ${best.label}, which closes ${range(best, share)} of the gap; ${D.baseline} is at place ${base.place} [${base.lowPlace}, ${base.highPlace}].`, `First in at least 5 % of the resamples: ${likely.map((row) => `${row.label} (${row.first.toFixed(2)})`).join(", ")}.`, `Above 0 with their intervals: ${above.join(", ") || "none"}.`);
  const without = unclear.filter((d) => !rooms[d]).map(nameOf), small = unclear.filter((d) => rooms[d]).map(nameOf);
  if (small.length) parts.push(`The head-room of ${small.join(", ")} is not clear of its error: values alone, no shares.`);
  if (without.length) parts.push(`There is no ceiling of ${without.join(", ")}: values alone, no shares.`);
  return parts.join(" ");
}

function showGap() {
  const { methods, apart, judged } = view();
  if (!judged.length) return [empty("No dataset is chosen that this rule can judge.")];
  const whole = methods.filter((row) => row.whole), parts = methods.filter((row) => !row.whole);
  const about = `On a dataset: (row − ${D.baseline}) / (ceiling − ${D.baseline}), of means over trials. Means over datasets are bounded below at ${share(D.constants.floor)}; brackets are 95 % intervals of a bootstrap over datasets, then trials. Underlined: a gain or loss after Holm's correction over all rows and datasets that are shown; ▴ ▾: beyond 1 and −1. Every number opens its runs.`;
  return [el("p", { id: "summary" }, summary()), el("p", { class: "caption" }, about), heatKey(), heatTable(sorted(whole), "Share of the gap closed"),
    ...(parts.length ? [el("h3", {}, "Rows that lack a dataset"), heatTable(sorted(parts), "Rows that lack a dataset")] : []),
    ...(apart.length ? [el("h3", {}, "Transductive rows and the constant answer"), el("p", { class: "caption" }, "Predictions of transductive rows, adaptations among them, depend on the other test inputs; they have no place among methods."), heatTable(sorted(apart), "Transductive rows and the constant answer")] : [])];
}
