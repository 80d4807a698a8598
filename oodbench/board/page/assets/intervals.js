// Rows with intervals: mean shares and places beside each other, and the gains on one dataset.

// The ends of an axis that a few far values do not stretch: values are left out at an end where the others need less than half of the axis.
function fences(values, most = 0.08) {
  const all = values.filter((v) => Number.isFinite(v)).sort((a, b) => a - b), allowed = Math.ceil(all.length * most);
  let low = 0, high = all.length - 1;
  const whole = () => all[high] - all[low];
  for (let k = allowed; k > 0 && high - low > 2 * k; k--) if (whole() > 2 * (all[high - k] - all[low])) { high -= k; break; }
  for (let k = allowed; k > 0 && high - low > 2 * k; k--) if (whole() > 2 * (all[high] - all[low + k])) { low += k; break; }
  return [all[low], all[high]];
}

// A scale with such ends, to which it clips; `beyond` says at which end a value is clipped.
function fenced(values, from, to, most) {
  const [low, high] = extent(fences(values, most), 0.04), plain = scale(low, high, from, to);
  const map = (v) => plain(Math.min(high, Math.max(low, v)));
  return Object.assign(map, { low, high, log: false, beyond: (v) => (v < low ? -1 : v > high ? 1 : 0) });
}

const ROW = 19;
function intervalChart(rows, width, options) {
  const { low, middle, high, zero, tick, text, label, tone = () => "unclear", open, title } = options;
  const names = Math.min(width * 0.42, 14 + 6.6 * Math.max(...rows.map((row) => row.label.length))), top = 38, height = top + rows.length * ROW + 30;
  const box = { left: names, right: width - 14, top, bottom: height - 30 };
  const x = fenced(rows.flatMap((row) => [low(row), middle(row), high(row)]).concat(zero), box.left + 8, box.right, 0.06), points = [];
  const marks = ticks(x.low, x.high, Math.max(2, Math.floor((box.right - box.left) / 60))).filter((t) => t >= options.least);
  const grid = marks.map((t) => [svg("path", { class: "grid", d: `M${x(t)} ${top}V${box.bottom}` }), ...[top - 6, box.bottom + 14].map((y) => svg("text", { class: "tick", x: x(t), y, "text-anchor": "middle" }, tick(t)))]);
  const lines = rows.map((row, i) => {
    const y = top + (i + 0.5) * ROW, at = x(middle(row)), parts = [svg("text", { class: row.r === baseline ? "strong" : "", x: names - 4, y: y + 4, "text-anchor": "end" }, row.label)];
    points.push({ x: at, y, row });
    if (!missing(low(row))) parts.push(svg("path", { class: "interval stroke", d: `M${round(x(low(row)))} ${y}H${round(x(high(row)))}` }));
    for (const [end, v] of [[-1, low(row)], [1, high(row)]]) if (x.beyond(v) === end) parts.push(svg("path", { class: "arrow fill", d: `M${x(v) + 6 * end} ${y}l${-6 * end} -4v8z` }));
    parts.push(svg("path", { class: x.beyond(middle(row)) ? "ring" : "dot fill", d: mark(0, at, y, 4) }));
    return svg("g", { class: `${tone(row)} ${row.r === baseline ? "base" : ""}`, "data-interval": row.label }, parts);
  });
  const axis = svg("path", { class: "zero", d: `M${x(zero)} ${top}V${box.bottom}` });
  const named = svg("text", { class: "tick", x: width - 4, y: 12, "text-anchor": "end" }, title);
  return chart(width, height, label, named, grid, axis, lines, hotspots(width, height, points, (p) => `${p.row.label}\n${text(p.row)}`, (p) => open(p.row)));
}

const toneOf = (low, high) => (low > 0 ? "better" : high < 0 ? "worse" : "unclear");

function showOrder() {
  const rows = view().methods.filter((row) => !missing(row.place)).sort((a, b) => a.place - b.place);
  if (rows.length < 2) return [empty("No two rows that are chosen have every dataset with a clear head-room.")];
  const all = bodyWidth(), width = all < NARROW ? all : Math.floor((all - 24) / 2);
  const tone = (row) => (row.r === baseline ? "base" : toneOf(row.low, row.high));
  const shares = intervalChart(rows, width, { low: (row) => row.low, middle: (row) => row.mean, high: (row) => row.high, zero: 0, tick: (t) => share(t), text: (row) => `mean share ${range(row, share)}`, tone, open: openRow, least: -Infinity, label: "Mean share of the gap closed, with intervals", title: `mean share of the gap: 0 is ${D.baseline}` });
  const text = (row) => `place ${row.place} [${row.lowPlace}, ${row.highPlace}], first in ${Math.round(100 * row.first)} % of the resamples`;
  const places = intervalChart(rows, width, { low: (row) => row.lowPlace, middle: (row) => row.place, high: (row) => row.highPlace, zero: rowAt(baseline).place, tick: (t) => String(Math.round(t)), text, tone: (row) => (row.r === baseline ? "base" : row.highPlace < rowAt(baseline).place ? "better" : row.lowPlace > rowAt(baseline).place ? "worse" : "unclear"), open: openRow, least: 1, label: "Places, with intervals", title: `place among ${rows.length}: 1 is the best` });
  const about = `Rows that have every dataset, by their mean share. Lines: 95 % intervals of the bootstrap; dashed: ${D.baseline}. Green rows are ahead of it with their whole interval, red ones behind. An arrow is an interval that goes on beyond the axis.`;
  return [el("p", { class: "caption" }, about), el("div", { class: "pair" }, shares, places)];
}

function showGains() {
  const { judged } = view();
  if (!judged.length) return [empty("No dataset is chosen that this rule can judge.")];
  const d = judged.includes(state.gainsOf) ? state.gainsOf : judged[0], dataset = D.datasets[d];
  const pick = choice("gainsOf", "Dataset", judged.map((i) => [i, nameOf(i)]), d, (v) => { state.gainsOf = Number(v); saveState(); render(["gains"]); });
  const rows = view().methods.filter((row) => row.gains[d] && row.r !== baseline && Number.isFinite(row.gains[d].mean)).sort((a, b) => b.gains[d].mean - a.gains[d].mean);
  if (!rows.length) return [el("div", { class: "row" }, pick), empty(`No row but ${D.baseline} has been run on ${dataset.name}.`)];
  const at = (name) => (row) => row.gains[d][name], tick = (t) => signed(t, dataset.percent) || "0";
  const figure = intervalChart(rows, Math.min(bodyWidth(), 900), { low: at("low"), middle: at("mean"), high: at("high"), zero: 0, tick: (t) => (Math.abs(t) < 1e-12 ? "0" : tick(t)), text: (row) => `${gainText(d, row.gains[d])} ${unitOf(d)}${row.gains[d].sign ? "\nbeyond chance after Holm's correction" : ""}\n${dataset.metric} ${valueText(d, row.values[d])}`, tone: (row) => (row.gains[d].sign ? `${row.gains[d].sign > 0 ? "better" : "worse"} sure` : toneOf(row.gains[d].low, row.gains[d].high)), open: (row) => openCell(row, d), least: -Infinity, label: `Gains over ${D.baseline} on ${dataset.name}`, title: `gain over ${D.baseline} in ${unitOf(d)}` });
  const sure = rows.filter((row) => row.gains[d].sign).length;
  const about = `${dataset.name}: paired by trial; 95 % intervals by Student's t over ${plural(dataset.trials, "trial")}, not corrected for their number. ${sure ? `${plural(sure, "row")} with a thick line ${sure === 1 ? "is" : "are"} beyond chance after Holm's correction over all rows and datasets that are shown.` : "None is beyond chance after Holm's correction over all rows and datasets that are shown."}`;
  return [el("div", { class: "row" }, pick), el("p", { class: "caption" }, about), figure];
}
