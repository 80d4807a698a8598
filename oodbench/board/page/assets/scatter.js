// Gain against cost, and values in against out of distribution.

// Texts beside points, where one fits: to the right, the left, above or below, clear of all points and of the texts before it.
function placedTexts(points, box) {
  const taken = points.map((p) => [p.x - 5, p.y - 5, p.x + 5, p.y + 5]), texts = [];
  const free = ([a, b, c, e]) => a > box.left && c < box.right && b > box.top - 4 && e < box.bottom && taken.every(([x, y, u, v]) => c < x || a > u || e < y || b > v);
  for (const p of points) {
    const width = 7.1 * p.text.length + 4;
    const spots = [[p.x + 7, p.y - 7], [p.x - 7 - width, p.y - 7], [p.x - width / 2, p.y - 20], [p.x - width / 2, p.y + 6]];
    const spot = spots.map(([x, y]) => [x, y, x + width, y + 13]).find(free);
    if (!spot) continue;
    taken.push(spot);
    texts.push(svg("text", { class: "tick", x: round(spot[0] + 2), y: round(spot[1] + 10) }, p.text));
  }
  return texts;
}

function showCost() {
  const rows = view().methods.filter((row) => !missing(row.mean) && row.cost > 0).sort((a, b) => b.mean - a.mean);
  if (rows.length < 2) return [empty("No two rows that are chosen have a mean share and a cost.")];
  const width = Math.min(bodyWidth(), 1000), height = Math.min(520, Math.max(340, width * 0.5)), box = { left: 52, right: width - 14, top: 26, bottom: height - 46 };
  const costs = rows.map((row) => row.cost), low = Math.min(...costs) / 1.15, high = Math.max(...costs) * 1.15;
  const x = scale(low, high, box.left, box.right, true), y = fenced(rows.map((row) => row.mean).concat(0), box.bottom, box.top, 0.05);
  const points = rows.map((row) => ({ row, x: x(row.cost), y: y(row.mean), text: row.label }));
  const best = points.filter((p) => !points.some((q) => q.row.cost <= p.row.cost && q.row.mean > p.row.mean));
  const marks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100].filter((t) => t > low && t < high).map((t) => [t, `${t} ×`]);
  const front = best.slice().sort((a, b) => a.x - b.x), line = front.map((p, i) => `${i ? `H${round(p.x)}V` : `M${round(p.x)} `}${round(p.y)}`).join("");
  const ordered = [...best, ...points.filter((p) => p.row.r === baseline && !best.includes(p)), ...points.filter((p) => !best.includes(p) && p.row.r !== baseline)];
  const dots = points.map((p) => svg("path", { class: `${p.row.alone ? "ring" : "dot fill"} ${p.row.r === baseline ? "base" : toneOf(p.row.low, p.row.high)}`, d: mark(0, p.x, p.y, 4.5), "data-cost": p.row.label }));
  const tell = (p) => `${p.row.label}\nmean share ${range(p.row, share)}\n${p.row.cost.toFixed(2)} times the seconds of ${D.baseline}${p.row.alone ? ", trained one by one" : ""}`;
  const picture = chart(width, height, "Mean share of the gap against cost", axes(x, y, box, { x: short, y: share, marks, below: `seconds of a run beside ${D.baseline}'s`, above: "mean share of the gap" }), svg("path", { class: "zero", d: `M${box.left} ${y(0)}H${box.right}` }), svg("path", { class: "front", d: line }), dots, placedTexts(ordered, box), hotspots(width, height, points, tell, (p) => openRow(p.row)));
  const about = `Cost: the median over datasets of the seconds of a row's fastest run beside ${D.baseline}'s. Dots are rows whose runs were trained many at once, rings those that were trained one by one, which is most of their difference. Other work went on beside them, so that a ratio below 1 is of that work. The line joins rows that no cheaper one beats.`;
  return [el("p", { class: "caption" }, about), picture];
}

// A panel for each dataset: all runs faint, and each row's chosen ones as one mark.
async function showLine() {
  const usable = D.datasets.map((_, d) => d).filter((d) => !state.off.has(d) && results[D.usual]?.[d].size), without = D.datasets.map((_, d) => d).filter((d) => !state.off.has(d) && !usable.includes(d)).map(nameOf);
  if (!usable.length) return [empty(`No dataset that is chosen has held-out examples of its training environments, by which ${D.usual} judges.`)];
  const { parts } = await runsBehind();
  const panels = usable.map((d) => linePanel(d, parts));
  const about = `Every run of a method at the step that ${D.usual} chooses: its score on held-out examples of the training environments, and its value on the test environments. Darker marks are rows: the means of the runs that ${D.usual} chooses. ρ: Spearman's correlation over runs; where it is high, whatever fits better is better out of distribution, too. The square is ${D.baseline}; rings are beyond the axes. Dotted: the constant answer and the ceiling.`;
  return [el("p", { class: "caption" }, about), el("div", { class: "panels" }, panels), without.length ? el("p", { class: "note" }, `Without such examples: ${without.join(", ")}.`) : null];
}

function pointsOn(d, parts) {
  const shown = new Set(view().methods.map((row) => row.r)), all = [], rows = [];
  for (const [r, { runs }] of results[D.usual][d]) {
    const judged = parts[`${d} ${r}`].rules[D.usual];
    if (!isKind(r, "method")) continue;
    const own = judged.run.map((run, i) => ({ run, inside: judged.score[i], test: judged.value[i] })).filter((p) => !missing(p.inside) && !missing(p.test));
    if (shown.has(r)) all.push(...own);
    const chosen = own.filter((p) => runs.includes(p.run));
    if (shown.has(r) && chosen.length) rows.push({ r, inside: meanOf(chosen.map((p) => p.inside)), test: meanOf(chosen.map((p) => p.test)) });
  }
  return { all, rows };
}

// A scale for all of a cloud but its far runs, for all rows but far ones, and for the levels; logarithmic for losses of several sizes.
function cloudScale(cloud, rows, levels, from, to, percent) {
  const ends = [...fences(cloud, 0.02), ...(rows.length ? fences(rows, 0.05) : []), ...levels], low = Math.min(...ends), high = Math.max(...ends);
  if (percent || low <= 0 || high < 20 * low) return fenced([low, high], from, to);
  const plain = scale(low / 1.1, high * 1.1, from, to, true);
  return Object.assign((v) => plain(Math.min(high * 1.1, Math.max(low / 1.1, v))), { low: low / 1.1, high: high * 1.1, log: true, beyond: (v) => (v < low ? -1 : v > high ? 1 : 0) });
}

function levelLines(levels, y, box) {
  let last = -Infinity;
  return levels.sort((a, b) => y(a[1]) - y(b[1])).map(([name, v]) => {
    const at = round(y(v));
    last = Math.max(at + 4, last + 11);
    return [svg("path", { class: "diagonal", d: `M${box.left} ${at}H${box.right}` }), svg("text", { class: "tick", x: box.right + 4, y: last }, name)];
  });
}

function linePanel(d, parts) {
  const { all, rows } = pointsOn(d, parts), dataset = D.datasets[d], columns = Math.max(1, Math.floor((bodyWidth() + 18) / 318)), width = Math.floor((bodyWidth() - (columns - 1) * 18) / columns), height = 250;
  const box = { left: 48, right: width - 52, top: 24, bottom: height - 42 }, inside = all.map((p) => p.inside), test = all.map((p) => p.test);
  const known = [["constant", constants[d] && signs[d] * meanOf(constants[d])], ["ceiling", levelOf(d)]].filter(([name, v]) => !missing(v) && (dataset.percent || name === "ceiling"));
  const x = cloudScale(inside, rows.map((p) => p.inside), [], box.left + 4, box.right, dataset.percent), y = cloudScale(test, rows.map((p) => p.test), known.map(([, v]) => v), box.bottom - 4, box.top, dataset.percent);
  const isOut = (p) => x.beyond(p.inside) || y.beyond(p.test), outside = all.filter(isOut).length;
  const tick = (t) => short(dataset.percent ? 100 * t : t), text = `${dataset.metric}${dataset.percent ? " (%)" : ""}`;
  const cloud = svg("path", { class: "cloud", d: all.filter((p) => !isOut(p)).map((p) => `M${round(x(p.inside))} ${round(y(p.test))}h0`).join("") });
  const points = rows.map((p) => ({ ...p, x: x(p.inside), y: y(p.test) })).sort((a, b) => (a.r === baseline) - (b.r === baseline));
  const tell = (p) => `${labelOf(p.r)}\nin distribution ${number(p.inside, dataset.percent)}, test ${number(p.test, dataset.percent)}${isOut(p) ? "\nbeyond the axes" : ""}`;
  const marks = points.map((p) => svg("path", { class: `${isOut(p) ? "ring" : "dot fill"} ${p.r === baseline ? "base" : "c0"}`, d: mark(p.r === baseline ? 1 : 0, p.x, p.y, 3.6) }));
  const picture = chart(width, height, `${dataset.name}: in against out of distribution`, axes(x, y, box, { x: tick, y: tick, below: `${text} in distribution`, above: `${text} on ${testName(dataset)}` }), cloud, levelLines(known, y, box), marks, hotspots(width, height, points, tell, (p) => openUsual(p.r, d)));
  const image = dataset.picture ? el("figure", { class: "examples" }, el("img", { src: dataset.picture, alt: `Examples of ${dataset.name}, a row for each environment` }), el("figcaption", {}, dataset.licence)) : null;
  const about = `${dataset.shift}; ρ = ${share(spearman(inside, test))}, ${all.length.toLocaleString("en")} runs${outside ? `, ${outside} of them beyond the axes` : ""}`;
  return el("div", { "data-panel": dataset.name }, el("h3", {}, dataset.name), el("p", { class: "caption" }, about), picture, image);
}

const testName = (dataset) => { const names = dataset.tests.flat(); return names.length > 1 ? "the test environments" : names[0] === "test" ? "test" : `test ${names[0]}`; };
const levelOf = (d) => { const table = results[D.usual][d], r = [...table.keys()].find((k) => isKind(k, "ceiling")); return r === undefined ? null : signs[d] * meanOf(table.get(r).values); };
function openUsual(r, d) {
  const row = rowAt(r);
  if (row && row.values[d]) openCell(row, d);
}

function rankOf(values) {
  const order = values.map((_, i) => i).sort((a, b) => values[a] - values[b]), ranks = [];
  for (let i = 0; i < order.length; ) {
    let j = i;
    while (j < order.length && values[order[j]] === values[order[i]]) j++;
    for (let k = i; k < j; k++) ranks[order[k]] = (i + j - 1) / 2;
    i = j;
  }
  return ranks;
}
function spearman(a, b) {
  if (a.length < 2) return NaN;
  const x = rankOf(a), y = rankOf(b), mx = meanOf(x), my = meanOf(y), product = (p, q, mp, mq) => sum(p.map((v, i) => (v - mp) * (q[i] - mq)));
  return product(x, y, mx, my) / Math.sqrt(product(x, x, mx, mx) * product(y, y, my, my));
}
