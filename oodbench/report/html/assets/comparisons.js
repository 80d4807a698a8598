// Differences to the baseline and ranks.
function showDifferences() {
  if (data().baseline === null) return [empty("The sweep has no such row to compare with.")];
  const blocks = (rule().differences || []).filter((b) => state.dataset < 0 || b.dataset === state.dataset);
  const order = blocks.filter((b) => b.dataset === null).concat(blocks.filter((b) => b.dataset !== null));
  if (!order.length) return [empty("No pair of runs is complete under this rule yet.")];
  const name = label(data().baseline);
  const note = el("p", { class: "caption" }, `Gain over ${name}, paired by test environment and trial. ${rule().shared} To the right of the line ${name} is beaten. Points: means; lines: 95 % intervals (Student's t over datasets, or over trials of one dataset). P: the share of hierarchical bootstrap resamples in which the algorithm is better. Detectable: the smallest gain that so many clusters find with 80 % power; smaller ones are not to be read as differences.`);
  const parts = order.map((b, i) => (i === 0 ? forest(b) : el("details", { open: order.length <= 4 }, el("summary", {}, data().datasets[b.dataset].name), forest(b))));
  return [note, ...parts];
}

function forest(block) {
  const percent = block.dataset === null || data().datasets[block.dataset].percent, keep = shownSet();
  const rows = block.rows.filter((r) => keep.has(r.label)).sort((a, b) => (b.gain ?? -Infinity) - (a.gain ?? -Infinity));
  if (!rows.length) return empty("No other algorithm is shown.");
  const width = bodyWidth() < 560 ? 150 : 260, height = 22;
  const [low, high] = extent(rows.flatMap((r) => [r.gain, r.low, r.high]).concat(0), 0.06);
  const x = scale(low, high, 6, width - 6);
  const line = (r) => {
    if (missing(r.gain)) return "";
    const parts = [svg("path", { class: "zero", d: `M${x(0)} 0V${height}` })];
    if (!missing(r.low)) parts.push(svg("path", { class: "interval stroke", d: `M${x(r.low)} 11H${x(r.high)}` }));
    parts.push(svg("path", { class: "dot fill", d: mark(0, x(r.gain), 11, 4.5) }));
    return svg("svg", { width, height, class: `forest ${verdict(r)}`, "aria-hidden": "true", "data-forest": label(r.label) }, parts);
  };
  const body = rows.map((r) => ({
    attributes: { class: r.pairs < r.planned ? "unranked" : null },
    cells: [label(r.label), { content: line(r) }, { content: gainText(r, percent), class: verdict(r) }, missing(r.probability) ? "–" : r.probability.toFixed(2), `${r.wins} / ${r.ties} / ${r.losses}`, r.equal ? "–" : number(r.detectable, percent, 3), pairsButton(block, r)],
  }));
  const where = block.dataset === null ? "All datasets that are measured in %" : `${data().datasets[block.dataset].name}, ${data().datasets[block.dataset].metric}${percent ? " (points of %)" : ""}`;
  const axis = ticks(low, high, 4).map((t) => svg("text", { class: "tick", x: x(t), y: 12, "text-anchor": "middle" }, short(percent ? 100 * t : t)));
  const head = ["algorithm", { text: svg("svg", { class: "forest", width, height: 16, "aria-hidden": "true" }, axis) }, "gain [95 %]", "P", { text: "won / tied / lost", title: `tied: within ±${number(block.band, percent)}` }, "detectable", "pairs"];
  return table(where + (block.band ? `; ties are within ±${number(block.band, percent)}` : ""), head, body, { label: `Differences: ${where}` });
}

function pairsButton(block, row) {
  const B = rule().board, runs = [];
  for (let i = 0; i < B.dataset.length; i++) {
    const here = block.dataset === null ? data().datasets[B.dataset[i]].percent : B.dataset[i] === block.dataset;
    if (here && B.environment[i] && B.tests[i] && (B.label[i] === row.label || B.label[i] === data().baseline)) runs.push(...B.runs[i]);
  }
  const text = row.pairs < row.planned ? `${row.pairs}/${row.planned}` : String(row.pairs);
  return el("button", { type: "button", "aria-label": `${text} pairs; their runs`, onclick: () => openRuns(`${label(row.label)} against ${label(data().baseline)}`, [...new Set(runs)]) }, text);
}

function showRanks() {
  const ranks = rule().ranks;
  if (!ranks || ranks.error) return [empty(ranks ? ranks.error : "")];
  const what = ranks.by === "dataset" ? plural(ranks.blocks, "dataset") : `${plural(ranks.blocks, "test environment")} of one dataset, which share training data: read the groups as too narrow`;
  const block = ranks.by === "dataset" ? "dataset" : "test environment";
  const rank = (l) => ranks.mean[ranks.labels.indexOf(l)].toFixed(2);
  const text = ranks.labels.map((l) => `${label(l)} ${rank(l)}`).join(", ");
  const figure = el("figure", {}, diagram(ranks, text), el("figcaption", {}, `Mean ranks over ${what}; 1 is the best. Algorithms joined by a bar differ by less than the critical difference ${ranks.width.toFixed(2)} (Nemenyi, 5 %).`));
  const parts = [figure];
  if (ranks.friedman) parts.push(el("p", {}, `Friedman's test that all are equal: χ² = ${number(ranks.friedman[0])}, p = ${number(ranks.friedman[1])}.`));
  if (ranks.incomplete.length) parts.push(el("p", { class: "alert" }, `Not ranked, because incomplete: ${ranks.incomplete.map(label).join(", ")}.`));
  if (ranks.holm.length) parts.push(later("p-values against the baseline (Holm)", () => table(`Each against ${label(data().baseline)} by mean rank, corrected by Holm's procedure`, ["algorithm", "mean rank", "p (Holm)"], ranks.holm.map(([l, p]) => [label(l), rank(l), number(p, false, 3)]))));
  if (ranks.stability.length) parts.push(later(`How the ranking moves without a ${block}`, () => table(`Kendall's τ between the ranking on all ${block}s and on all but one; 1: unmoved`, ["left out", "τ"], ranks.stability.map(([name, tau]) => [name, tau.toFixed(2)]))));
  return parts;
}

function diagram(ranks, text) {
  const k = ranks.labels.length, width = bodyWidth(), narrow = width < 560;
  const side = narrow ? 112 : 190, left = side, right = width - side, half = Math.ceil(k / 2);
  const x = scale(1, k, left, right), top = 58, gap = 9, row = 20;
  const bars = ranks.cliques.map((group, i) => {
    const at = group.map((l) => x(ranks.mean[ranks.labels.indexOf(l)])), y = top + 14 + i * gap;
    return svg("path", { class: "clique", d: `M${Math.min(...at) - 3} ${y}H${Math.max(...at) + 3}` });
  });
  const base = top + 26 + ranks.cliques.length * gap;
  const names = ranks.labels.map((l, i) => {
    const first = i < half, line = first ? i : k - 1 - i, y = base + line * row, at = x(ranks.mean[i]), end = first ? left - 14 : right + 14;
    const name = label(l).length > (narrow ? 11 : 22) ? `${label(l).slice(0, narrow ? 10 : 21)}…` : label(l);
    return [svg("path", { class: "hair", d: `M${at} ${top}V${y}H${end}` }), svg("text", { x: first ? end - 5 : end + 5, y: y + 4, "text-anchor": first ? "end" : "start" }, `${name} ${ranks.mean[i].toFixed(2)}`)];
  });
  const scaleMarks = Array.from({ length: k }, (_, i) => i + 1).filter((t) => k <= 16 || t % 2).map((t) => [svg("path", { class: "axis", d: `M${x(t)} ${top}v-6` }), svg("text", { class: "tick", x: x(t), y: top - 10, "text-anchor": "middle" }, t)]);
  const reach = Math.min(ranks.width, k - 1), end = x(1 + reach);
  const ruler = [svg("path", { class: "hair", d: `M${left} 20v-6M${left} 17H${end}${ranks.width > k - 1 ? "" : "m0 3v-6"}` }), svg("text", { class: "tick", x: left, y: 9 }, `critical difference ${ranks.width.toFixed(2)}${ranks.width > k - 1 ? ", wider than the axis" : ""}`)];
  return chart(width, base + half * row, `Critical-difference diagram. ${text}.`, ruler, svg("path", { class: "axis", d: `M${left} ${top}H${right}` }), scaleMarks, names, bars);
}
