"""How networks memorize: the measures of arXiv:1706.05394 on the runs of finished sweeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from oodbench.datasets import Dataset, make
from oodbench.errors import UserError
from oodbench.gradients.critical import gini, loss_sensitivity
from oodbench.networks.base import build
from oodbench.report.figures import COLOURS, PAPER, WIDTHS, plain, save
from oodbench.report.numbers import number
from oodbench.report.statistics import mean_and_error
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.tables import Tables
from oodbench.seeds import derive
from oodbench.terminal import Terminal

TRAIN, TEST, CSR = "training accuracy", "test accuracy", "critical_sample_ratio"
KEYS = ["dataset_label", "label", "trial"]
UPDATES, EVERY, BATCH, LR = 120, 20, 50, 0.1
"""SGD as unrolled for loss sensitivity, in a network with two hidden layers of 16 units."""
TRIALS = 10
"""The most trials of loss sensitivity."""
HEADER = (
    *("dataset", "method", TRAIN, f"best {TEST}", "CSR, first", "CSR, last"),
    *("spread / binomial", "Gini"),
)

LEGEND = 1.3
"""Inches of the legend beside the panels."""

Numbers = npt.NDArray[np.float64]


def over_training(frames: Tables) -> pd.DataFrame:
    """KEYS and `step` of each evaluation, with the columns TRAIN, TEST and CSR as far as recorded."""
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


def errors_of_examples(frames: Tables) -> dict[str, Numbers]:
    """Whether each of R runs misclassifies each of N training examples at the first step, (R, N), by
    dataset (and method, of several); raises UserError if predictions are not kept, or of other data in
    each trial.
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
    """The standard deviation of examples' error rates over that of equally hard examples, whose errors
    are binomial, in each of ten groups of the R runs (fewer below 20 runs).
    """
    groups = np.array_split(errors, np.clip(len(errors) // 2, 1, 10))
    equal = [np.sqrt(part.mean() * (1 - part.mean()) / len(part)) for part in groups]
    return [float(part.mean(0).std() / e) for part, e in zip(groups, equal, strict=True)]


def gini_over_training(frames: Tables, trials: int = TRIALS) -> dict[str, Numbers]:
    """The Gini coefficient of the mean loss sensitivity up to each EVERY-th update, (trials, T), by
    dataset, on its first training environment.
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
    """Print a row for each dataset and method; save the figures that the runs have the numbers for.

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
            number(*mean_and_error(v), "accuracy") if v.notna().all() else "-" for v in numbers
        ]
        wrong = errors.get(str(name), errors.get(f"{name}, {label}"))
        of_data: list[npt.ArrayLike] = [
            [] if wrong is None else spread(wrong),
            ginis[str(name)][:, -1],
        ]
        texts += [number(*mean_and_error(v), "") if np.size(v) else "-" for v in of_data]
        rows.append([str(name), str(label), *texts])
    console.print(console.tables(HEADER, rows, keys=2))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for file, figure in _figures(curves, ginis, errors).items():
            save(figure, folder / f"{file}.png")


def _figures(
    curves: pd.DataFrame, ginis: dict[str, Numbers], errors: dict[str, Numbers]
) -> dict[str, Figure]:
    draw: dict[str, tuple[Callable[..., None], Any, int]] = {"gini": (_draw_gini, ginis, 1)}
    draw |= {"easy-examples": (_draw_errors, errors, 1)} if errors else {}
    if curves["label"].nunique() == 1:
        draw["over-training"] = (_draw_curves, curves, 1 + bool(curves[CSR].notna().any()))
    elif curves["label"].map(_family).nunique() == 1:
        draw["capacity"] = (_draw_capacity, curves, 2)
    else:
        draw["regularizers"] = (_draw_regularizers, curves, 1)
    found = {}
    with matplotlib.rc_context(PAPER | {"axes.prop_cycle": _colours(len(ginis))}):
        for name, (function, numbers, panels) in draw.items():
            found[name] = Figure((WIDTHS[panels] + LEGEND, 2.6), layout="constrained")
            axes = found[name].subplots(1, panels, squeeze=False)[0]
            function(*axes, numbers)
            found[name].legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return found


def _colours(names: int) -> Any:
    """The usual colours, or as many shades as there are names."""
    few = names <= len(COLOURS)
    return cycler(color=COLOURS if few else matplotlib.colormaps["turbo"](np.linspace(0, 1, names)))


def _family(label: str) -> str:
    """A row's label without its numbers."""
    return " ".join(word for word in label.split() if not word[0].isdigit())


def _draw_errors(axes: Axes, errors: dict[str, Numbers]) -> None:
    """Figure 3.1: the sorted error rates of examples, dotted as if all were equally hard."""
    for name, wrong in errors.items():
        runs, examples = wrong.shape
        (line,) = axes.plot(np.sort(wrong.mean(0)), label=plain(name))
        binomial = stats.binom.ppf((np.arange(examples) + 0.5) / examples, runs, wrong.mean())
        axes.plot(binomial / runs, ":", color=line.get_color())
    axes.set(xlabel="example, by error rate", ylabel="error rate after one epoch")


def _draw_gini(axes: Axes, ginis: dict[str, Numbers]) -> None:
    """Figure 3.3: the Gini coefficient of loss sensitivity over training."""
    for name, of_trials in ginis.items():
        axes.plot(
            EVERY * np.arange(1, 1 + of_trials.shape[1]), of_trials.mean(0), label=plain(name)
        )
    axes.set(xlabel="update", ylabel="Gini coefficient of loss sensitivity")


def _draw_curves(left: Axes, *rest: Any) -> None:
    """Figures 3.7 and 3.9: accuracy (dotted on test data) over training, and critical sample ratio
    where it is recorded.
    """
    *right, curves = rest
    for name, of in curves.groupby("dataset_label", sort=False):
        mean = of.groupby("step")[[TRAIN, TEST, CSR]].mean()
        (line,) = left.plot(mean.index, mean[TRAIN], label=plain(str(name)))
        left.plot(mean.index, mean[TEST], ":", color=line.get_color())
        for axes in right:
            axes.plot(mean.index, mean[CSR], color=line.get_color())
            axes.set(xlabel="step", ylabel="critical sample ratio")
    left.set(xlabel="step", ylabel="accuracy")


def _draw_capacity(left: Axes, right: Axes, curves: pd.DataFrame) -> None:
    """Figures 3.5 and 3.6: the best test accuracy, and the steps until all training examples are right
    in every trial, by the number in the row's label, such as `64 units`.
    """
    fitted = curves["step"].where(curves[TRAIN] == 1)
    runs = curves.assign(fitted=fitted).groupby(KEYS, sort=False)
    best = runs.agg(best=(TEST, "max"), fitted=("fitted", "min")).reset_index()
    best["number"] = best["label"].str.extract(r"([0-9.]+)", expand=False).astype(float)
    for name, of in best.groupby("dataset_label", sort=False):
        of_number = of.groupby("number")
        left.plot(of_number["best"].mean(), "o-", ms=3, label=plain(str(name)))
        right.plot(of_number["fitted"].agg(lambda steps: steps.mean(skipna=False)), "o-", ms=3)
    numbers = sorted(best["number"].unique())
    for axes in (left, right):
        axes.set(xlabel=plain(_family(best["label"][0])), xscale="log")
        axes.set_xticks(numbers, [f"{n:g}" for n in numbers])
        axes.minorticks_off()
    left.set(ylabel=f"best {TEST}")
    right.set(ylabel="steps until fitted")


def _draw_regularizers(axes: Axes, curves: pd.DataFrame) -> None:
    """Figure 3.10: the best test accuracy on `real` by the last training accuracy on `randY`."""
    last = curves[curves["step"] == curves["step"].max()]
    x = last[last["dataset_label"] == "randY"].groupby("label")[TRAIN].mean()
    y = curves[curves["dataset_label"] == "real"].groupby(["label", "trial"])[TEST].max()
    both = pd.DataFrame({"x": x, "y": y.groupby("label").mean()}).dropna().sort_values("x")
    for name, of in both.groupby(both.index.map(_family), sort=False):
        axes.plot(of["x"], of["y"], "o-", ms=3, label=plain(str(name)))
    axes.set(xlabel=f"{TRAIN} on randY", ylabel=f"best {TEST} on real")
