"""How networks memorize: the measures of arXiv:1706.05394 on the runs of finished sweeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from cycler import cycler
from matplotlib.figure import Figure
from scipy import stats

from oodbench.datasets import Dataset, make
from oodbench.errors import UserError
from oodbench.gradients.critical import gini, loss_sensitivity
from oodbench.networks.base import build
from oodbench.report.figures import COLOURS, PAPER, WIDTHS, plain, save
from oodbench.report.numbers import with_error
from oodbench.report.statistics import mean_and_error
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.tables import Tables
from oodbench.seeds import derive
from oodbench.terminal import Terminal

TRAIN, TEST, CSR = "training accuracy", "test accuracy", "critical_sample_ratio"
KEYS = ["dataset_label", "label", "trial"]
UPDATES, EVERY, BATCH, LR = 120, 20, 50, 0.1
"""SGD for loss sensitivity, through which it is differentiated; with two hidden layers of 16 units."""
TRIALS = 10
"""The most trials of loss sensitivity."""
HEADER = (
    *("dataset", "method", TRAIN, f"best {TEST}", "CSR, first", "CSR, last"),
    *("spread / binomial", "Gini, 2 x 16 units"),
)
LEGEND = 1.3
"""The width of the legend in inches."""

Numbers = npt.NDArray[np.float64]


def over_training(frames: Tables) -> pd.DataFrame:
    """TRAIN, TEST and CSR by KEYS and `step`; NaN where not recorded."""
    about = frames.runs[["id", *KEYS, "training_environments", "test_environments"]]
    table = frames.records.astype({"id": object, "environment": object}).merge(about, on="id")
    places = zip(table["environment"], table["training_environments"], strict=True)
    accuracy = (table["metric"] == "accuracy") & (table["split"] == "in")
    tested = accuracy & (table["environment"] == table["test_environments"].str[0])
    trained = accuracy & np.array([place in names for place, names in places])
    of = np.select([trained, tested, table["metric"] == CSR], [TRAIN, TEST, CSR], "")
    named = table.assign(of=of)[of != ""]
    wide = pd.pivot_table(named, "value", [*KEYS, "step"], "of", sort=False).reset_index()
    return pd.DataFrame(wide.reindex(columns=[*KEYS, "step", TRAIN, TEST, CSR]))


def fitted(curves: pd.DataFrame) -> "pd.Series[float]":
    """By KEYS, the first evaluated step at which all training examples are right; NaN if there is none."""
    steps = curves["step"].where(curves[TRAIN] == 1)
    return steps.groupby([curves[key] for key in KEYS]).min()


def errors_of_examples(frames: Tables) -> dict[str, Numbers]:
    """Mistakes of R runs on N training examples at the first evaluation, (R, N): 1 for a mistake, else 0.

    They are by dataset, and by method if there are several.

    Raises UserError if predictions are not kept, or if trials have different data.
    """
    read = predictions_of_runs(frames.runs)
    first = frames.records.groupby("id", observed=True)["step"].min()
    found = {}
    several = frames.runs["label"].nunique() > 1
    for (name, label), runs in frames.runs.groupby(["dataset_label", "label"], sort=False):
        places = zip(runs["id"], runs["training_environments"], strict=True)
        kept = [read(i, int(first[i]))[training[0]] for i, training in places]
        if len({(p.inputs, p.targets.tobytes()) for p in kept}) > 1:
            raise UserError(f"the trials of {name} have other data each: set its `same_data`")
        wrong = [p.logits.argmax(1) != p.targets for p in kept]
        found[f"{name}, {label}" if several else name] = np.stack(wrong).astype(float)
    return found


def spread(errors: Numbers) -> list[float]:
    """The standard deviation of examples' error rates, divided by that of equally hard examples (binomial).

    There is a value for each of ten groups of the R runs, or of fewer groups below 20 runs.
    """
    groups = np.array_split(errors, np.clip(len(errors) // 2, 1, 10))
    equal = [np.sqrt(part.mean() * (1 - part.mean()) / len(part)) for part in groups]
    return [float(part.mean(0).std() / e) for part, e in zip(groups, equal, strict=True)]


def gini_over_training(frames: Tables, trials: int) -> dict[str, Numbers]:
    """By dataset, the Gini coefficient (trials, T) of the mean loss sensitivity up to each EVERY-th update,
    on the first training environment.
    """
    first = frames.runs.drop_duplicates("dataset_label")
    made = {r.dataset_label: make(r.dataset, r.options) for r in first.itertuples()}
    return {n: np.stack([_gini(d, t) for t in range(trials)]) for n, d in made.items()}


def _gini(dataset: Dataset, trial: int) -> Numbers:
    data = dataset.load(trial)[dataset.trainable(dataset.test_environments)[0]]
    seed, outputs = derive("sensitivity", trial), dataset.task.num_outputs
    network = build("MLP", {"width": 16, "depth": 2}, dataset.input_shape, outputs, seed)
    g = torch.Generator().manual_seed(seed)
    batches = [torch.randperm(len(data.y), generator=g)[:BATCH] for _ in range(UPDATES)]
    of_data = (network, dataset.task.losses, data.x, data.y, batches)
    sizes = loss_sensitivity(*of_data, lr=LR, every=EVERY)[:, 0]
    return np.asarray(gini(sizes.cumsum(0)), dtype=float)


def show(frames: Tables, folder: Path | None, console: Terminal) -> None:
    """Print a row for each dataset and method, and save the figures for which there are numbers.

    Raises UserError for results without accuracies.
    """
    curves, errors = over_training(frames), dict[str, Numbers]()
    if curves.empty:
        raise UserError("memorization is measured on classes: these results record no accuracy")
    ginis = gini_over_training(frames, min(TRIALS, frames.runs["trial"].nunique()))
    try:
        errors = errors_of_examples(frames)
    except UserError as error:
        console.say(f"no error rates of examples: {error}")
    rows: list[list[str]] = []
    for (name, label), of in curves.groupby(["dataset_label", "label"], sort=False):
        runs = of.sort_values("step").groupby("trial")
        numbers = [runs[TRAIN].last(), runs[TEST].max(), runs[CSR].first(), runs[CSR].last()]
        texts = [
            str(with_error(*mean_and_error(v), "accuracy")) if v.notna().all() else "-"
            for v in numbers
        ]
        wrong = errors.get(str(name), errors.get(f"{name}, {label}"))
        spreads = [] if wrong is None else spread(wrong)
        of_data: list[npt.ArrayLike] = [spreads, ginis[str(name)][:, -1]]
        texts += [str(with_error(*mean_and_error(v), "")) if np.size(v) else "-" for v in of_data]
        rows.append([str(name), str(label), *texts])
    columns = [column for column in zip(HEADER, *rows, strict=True) if {*column[1:]} != {"-"}]
    header, *measured = zip(*columns, strict=True)
    console.print(console.tables(header, measured, keys=2))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for file, panels in _figures(curves, ginis, errors).items():
            save(_drawn(panels), folder / f"{file}.png")


@dataclass(frozen=True)
class Panel:
    """A line for each column of `lines`, and dotted lines for `dotted` in the same colours."""

    xlabel: str
    ylabel: str
    lines: pd.DataFrame
    dotted: pd.DataFrame | None = None
    style: str = "-"
    sizes: bool = False
    """Whether the index has sizes, which become the ticks of a logarithmic axis."""


def _drawn(panels: Sequence[Panel]) -> Figure:
    names = panels[0].lines.shape[1]
    shades = matplotlib.colormaps["turbo"](np.linspace(0, 1, names))
    colours = cycler(color=COLOURS if names <= len(COLOURS) else shades)
    with matplotlib.rc_context(PAPER | {"axes.prop_cycle": colours}):
        figure = Figure((WIDTHS[len(panels)] + LEGEND, 2.6), layout="constrained")
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(every, panels, strict=True):
            for name in panel.lines:
                line = panel.lines[name].dropna()
                (drawn,) = axes.plot(line.index, line, panel.style, ms=3, label=plain(str(name)))
                if panel.dotted is not None:
                    axes.plot(panel.dotted[name], ":", color=drawn.get_color())
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
            if panel.sizes:
                axes.set_xscale("log")
                axes.set_xticks(panel.lines.index, [f"{n:g}" for n in panel.lines.index])
                axes.minorticks_off()
        figure.legend(*every[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _figures(
    curves: pd.DataFrame, ginis: Mapping[str, Numbers], errors: Mapping[str, Numbers]
) -> dict[str, list[Panel]]:
    # comments give the figures' numbers in the thesis
    steps = {n: EVERY * np.arange(1, 1 + of.shape[1]) for n, of in ginis.items()}
    lines = pd.DataFrame({n: pd.Series(of.mean(0), steps[n]) for n, of in ginis.items()})
    found = {"gini": [Panel("update", "Gini coefficient of loss sensitivity", lines)]}  # 3.3
    if errors:  # 3.1
        rates = {name: pd.Series(np.sort(wrong.mean(0))) for name, wrong in errors.items()}
        equal = {name: pd.Series(_equally_hard(wrong)) for name, wrong in errors.items()}
        names = "example, by error rate", "error rate (dotted: if equally hard)"
        found["easy-examples"] = [Panel(*names, pd.DataFrame(rates), pd.DataFrame(equal))]
    if curves["label"].nunique() == 1:
        if curves["step"].nunique() > 1:  # a single evaluation makes no line
            found["over-training"] = _over_steps(curves)
    elif curves["label"].map(_family).nunique() == 1:
        found["capacity"] = _over_sizes(curves)
    else:
        found["regularizers"] = _over_strengths(curves)
    return found


def _over_steps(curves: pd.DataFrame) -> list[Panel]:
    # figures 3.7 and 3.9: accuracy (dotted on test data) and critical sample ratio over training
    order = curves["dataset_label"].unique()
    train, test, ratio = (
        curves.pivot_table(name, "step", "dataset_label", dropna=False)[order]
        for name in (TRAIN, TEST, CSR)
    )
    panels = [Panel("step", "accuracy (dotted: test)", train, test)]
    is_recorded = curves[CSR].notna().any()
    return panels + [Panel("step", "critical sample ratio", ratio)] * int(is_recorded)


def _over_sizes(curves: pd.DataFrame) -> list[Panel]:
    # figures 3.5 and 3.6: the best test accuracy, and the steps until all training examples are right in
    # every trial, by the number in the row's label, such as `64 units`
    best = curves.groupby(KEYS)[TEST].max()
    runs = pd.DataFrame({"best": best, "fitted": fitted(curves)}).reset_index()
    sizes = runs["label"].str.extract(r"([0-9.]+)", expand=False).astype(float)
    by_size = runs.assign(size=sizes).groupby(["size", "dataset_label"])
    means = {
        f"best {TEST}": by_size["best"].mean(),
        "steps until fitted": by_size["fitted"].agg(lambda steps: steps.mean(skipna=False)),
    }
    xlabel, order = plain(_family(curves["label"].iloc[0])), curves["dataset_label"].unique()
    tables = {y: pd.DataFrame(mean.unstack())[order] for y, mean in means.items()}
    return [Panel(xlabel, y, table, style="o-", sizes=True) for y, table in tables.items()]


def _over_strengths(curves: pd.DataFrame) -> list[Panel]:
    # figure 3.10: the best test accuracy on `real` by the last training accuracy on `randY`
    last = curves[(curves["step"] == curves["step"].max()) & (curves["dataset_label"] == "randY")]
    best = curves[curves["dataset_label"] == "real"].groupby(["label", "trial"])[TEST].max()
    of_labels = {"x": last.groupby("label")[TRAIN].mean(), "y": best.groupby("label").mean()}
    both = pd.DataFrame(of_labels).dropna()
    table = both.assign(family=both.index.map(_family)).pivot_table("y", "x", "family", sort=False)
    return [Panel(f"{TRAIN} on randY", f"best {TEST} on real", table.sort_index(), style="o-")]


def _equally_hard(wrong: Numbers) -> Numbers:
    runs, examples = wrong.shape
    quantiles = (np.arange(examples) + 0.5) / examples
    return np.asarray(stats.binom.ppf(quantiles, runs, wrong.mean()) / runs, dtype=float)


def _family(label: str) -> str:
    # the label without numbers
    return " ".join(word for word in label.split() if not word[0].isdigit())
