// The statistics of oodbench/report/gaps.py. Values are signed, so that larger is better; a diverged run is -Infinity.
const sum = (values) => values.reduce((a, b) => a + b, 0);
const meanOf = (values) => sum(values) / values.length;

function meanAndError(values) {
  const mean = meanOf(values), squares = sum(values.map((v) => (v - mean) ** 2));
  return { mean, error: values.length > 1 ? Math.sqrt(squares / (values.length - 1) / values.length) : NaN };
}

// The mean with its 95 % interval by Student's t; `halfWidths` has the half width in standard errors by the number of values.
function estimate(values, halfWidths) {
  const { mean, error } = meanAndError(values), half = (halfWidths[values.length] ?? NaN) * error;
  return { mean, error, low: mean - half, high: mean + half, n: values.length };
}

// The ceiling less the baseline, paired by trial; clear if it is larger than some of its errors.
function headRoom(ceiling, baseline, clear) {
  if (!ceiling || !baseline) return null;
  const { mean, error } = meanAndError(ceiling.map((v, t) => v - baseline[t]));
  return { mean, error, clear: mean > clear * error };
}

const shareOf = (values, baseline, room) => (meanOf(values) - meanOf(baseline)) / room.mean;
const boundedMean = (shares, floor) => meanOf(shares.map((s) => Math.max(s, floor)));

// Numbers from 0 to 1, the same ones in every browser (mulberry32).
function randomNumbers(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

// Each row's bounded mean share in every resample of the datasets and, within each that is drawn, of its trials, which are the same
// for all rows. `datasets`: a list of {values: [row][trial], room}; the first row is the baseline. Returns resamples x rows.
function resampled(datasets, rows, floor, resamples) {
  const random = randomNumbers(0), shares = new Float64Array(resamples * rows), means = new Float64Array(rows);
  for (let r = 0; r < resamples; r++) {
    for (let slot = 0; slot < datasets.length; slot++) {
      const { values, room } = datasets[Math.floor(random() * datasets.length)], trials = values[0].length;
      means.fill(0);
      for (let t = 0; t < trials; t++) {
        const drawn = Math.floor(random() * trials);
        for (let row = 0; row < rows; row++) means[row] += values[row][drawn] / trials;
      }
      for (let row = 0; row < rows; row++) shares[r * rows + row] += Math.max((means[row] - means[0]) / room.mean, floor) / datasets.length;
    }
  }
  return shares;
}

const column = (table, rows, row) => Float64Array.from({ length: table.length / rows }, (_, r) => table[r * rows + row]);

// The quantile of sorted values, between its neighbours.
function quantile(sorted, q) {
  const at = q * (sorted.length - 1), below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}
const intervalOf = (values) => { const sorted = values.slice().sort(); return [quantile(sorted, 0.025), quantile(sorted, 0.975)]; };

// Each row's place by its mean share, 1 the best, its spread over the resamples, and how often it is the first.
function placesOf(means, table) {
  const rows = means.length, resamples = table.length / rows, ranks = new Float64Array(table.length), first = new Float64Array(rows);
  for (let r = 0; r < resamples; r++) {
    const own = table.subarray(r * rows, (r + 1) * rows), best = [];
    for (let a = 0; a < rows; a++) {
      let better = 1;
      for (let b = 0; b < rows; b++) better += own[b] > own[a];
      ranks[r * rows + a] = better;
      if (better === 1) best.push(a);
    }
    for (const row of best) first[row] += 1 / best.length / resamples;
  }
  const inverse = (sorted, q) => sorted[Math.ceil(q * sorted.length) - 1];
  return means.map((mean, row) => {
    const sorted = column(ranks, rows, row).sort();
    return { place: 1 + means.filter((other) => other > mean).length, low: inverse(sorted, 0.025), high: inverse(sorted, 0.975), first: first[row] };
  });
}

// The two-sided p of Student's t with a whole number of degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).
function twoSidedP(t, degrees) {
  const angle = Math.atan(t / Math.sqrt(degrees)), cos = Math.cos(angle), odd = degrees % 2;
  let term = odd ? cos : 1, series = degrees > 1 ? term : 0;
  for (let k = odd ? 3 : 2; k < degrees; k += 2) {
    term *= ((k - 1) / k) * cos ** 2;
    series += term;
  }
  return 1 - (odd ? (2 / Math.PI) * (angle + Math.sin(angle) * series) : Math.sin(angle) * series);
}

// 1 for a gain, -1 for a loss, 0 for neither, after Holm's correction over all of these estimates; those of equal values are no tests.
function afterHolm(gains) {
  const tests = gains.map((g, i) => ({ i, p: pOf(g) })).filter(({ i }) => !gains[i].equal && gains[i].n > 1).sort((a, b) => a.p - b.p);
  const signs = gains.map(() => 0);
  for (let k = 0; k < tests.length && tests[k].p * (tests.length - k) < 0.05; k++) signs[tests[k].i] = Math.sign(gains[tests[k].i].mean);
  return signs;
}
function pOf(gain) {
  if (!Number.isFinite(gain.error)) return 1;
  return twoSidedP(gain.error ? Math.abs(gain.mean) / gain.error : Infinity, gain.n - 1);
}
