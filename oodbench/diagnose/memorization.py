"""How networks memorize: the measures of arXiv:1706.05394 on the runs of finished sweeps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from oodbench.datasets import Dataset, make
from oodbench.errors import UserError
from oodbench.gradients.sensitivity import gini, loss_sensitivity
from oodbench.networks.base import build
from oodbench.report.figures import PAPER, WIDTHS, plain, save
from oodbench.report.numbers import number
from oodbench.report.statistics import mean_and_error
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.tables import Tables
from oodbench.seeds import derive
from oodbench.terminal import Terminal

TRAIN, TEST, CSR = "training accuracy", "test accuracy", "critical_sample_ratio"
KEYS = ["dataset_label", "label", "trial"]
UPDATES, EVERY, BATCH, LR = 60, 10, 50, 0.1
"""SGD as unrolled for loss sensitivity, in a network with two hidden layers of 16 units."""
HEADER = (
    *("dataset", "method", TRAIN, f"best {TEST}", "CSR, first", "CSR, last"),
    *("spread / binomial", "Gini"),
)

Numbers = npt.NDArray[np.float64]


def over_training(frames: Tables) -> pd.DataFrame:
    """KEYS and `step` of each evaluation, with the columns TRAIN, TEST and CSR as far as recorded."""
    about = frames.runs[["id", *KEYS, "training_environments", "test_environments"]]
    table = frames.records.astype({"id": object, "environment": object}).merge(about, on="id")
    places = zip(table["environment"], table["training_environments"], strict=True)
    accuracy = (table["metric"] == "accuracy") & (table["split"] == "in")
    tested = accuracy & (table["environment"] == table["test_environments"].str[0])
    trained = accuracy & [place in names for place, names in places]
    of = np.select([trained, tested, table["metric"] == CSR], [TRAIN, TEST, CSR], "")
    wide = table.assign(of=of)[of != ""].pivot_table("value", [*KEYS, "step"], "of", sort=False)
    return wide.reset_index().reindex(columns=[*KEYS, "step", TRAIN, TEST, CSR])


def errors_of_examples(frames: Tables) -> dict[str, Numbers]:
    """Whether each of R runs of a dataset misclassifies each of N training examples, (R, N), at the
    first step; raises UserError if predictions are not kept, or of other data in each trial.
    """
    read = predictions_of_runs(frames.runs)
    first = frames.records.groupby("id", observed=True)["step"].min()
    found = {}
    for name, runs in frames.runs.groupby("dataset_label", sort=False):
        places = zip(runs["id"], runs["training_environments"], strict=True)
        kept = [read(i, int(first[i]))[training[0]] for i, training in places]
        if len({(p.inputs, p.targets.tobytes()) for p in kept}) > 1:
            raise UserError(f"the trials of {name} have other data each: set its `same_data`")
        wrong = [p.logits.argmax(1) != p.targets for p in kept]
        found[str(name)] = np.stack(wrong).astype(float)
    return found


def spread(errors: Numbers) -> list[float]:
    """The standard deviation of examples' error rates over that of equally hard examples, whose errors
    are binomial: a jackknife value for each of the R runs.
    """

    def ratio(part: Numbers) -> float:
        p = part.mean()
        return float(part.mean(0).std() / np.sqrt(p * (1 - p) / len(part)))

    runs, whole = len(errors), ratio(errors)
    return [runs * whole - (runs - 1) * ratio(np.delete(errors, r, 0)) for r in range(runs)]


def gini_over_training(frames: Tables, trials: int = 10) -> dict[str, Numbers]:
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
    """Print a row for each dataset and method; save the figures that the runs have the numbers for."""
    curves, ginis, errors = over_training(frames), gini_over_training(frames), {}
    try:
        errors = errors_of_examples(frames)
    except UserError as error:
        console.say(f"no error rates of examples: {error}")
    rows = []
    for (name, label), of in curves.groupby(["dataset_label", "label"], sort=False):
        runs = of.sort_values("step").groupby("trial")
        numbers = [runs[TRAIN].last(), runs[TEST].max(), runs[CSR].first(), runs[CSR].last()]
        numbers += [spread(errors[name])] if name in errors else [[]]
        texts = [number(*mean_and_error(v), "accuracy") for v in numbers]
        rows.append([name, label, *texts, number(*mean_and_error(ginis[name][:, -1]), "")])
    console.print(console.tables(HEADER, rows, keys=2))
    for file, figure in {} if folder is None else _figures(curves, ginis, errors).items():
        folder.mkdir(parents=True, exist_ok=True)
        save(figure, folder / f"{file}.png")


def _figures(
    curves: pd.DataFrame, ginis: dict[str, Numbers], errors: dict[str, Numbers]
) -> dict[str, Figure]:
    families = curves["label"].str.rpartition(" ")[0].unique()
    drawn: dict[str, Any] = {"gini": (lambda axes: _draw_gini(axes[0], ginis), 1)}
    if errors:
        drawn["easy-examples"] = (lambda axes: _draw_errors(axes[0], errors), 1)
    if curves["label"].nunique() == 1:
        drawn["over-training"] = (lambda axes: _draw_curves(axes, curves), 2)
    elif len(families) == 1:
        drawn["capacity"] = (lambda axes: _draw_capacity(axes[0], curves), 1)
    else:
        drawn["regularizers"] = (lambda axes: _draw_regularizers(axes[0], curves), 1)
    found = {}
    with matplotlib.rc_context(PAPER):
        for name, (draw, panels) in drawn.items():
            found[name] = figure = Figure((WIDTHS[panels], 2.6), layout="constrained")
            axes = figure.subplots(1, panels, squeeze=False)[0]
            draw(axes)
            axes[0].legend()
    return found


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


def _draw_curves(axes: Sequence[Axes], curves: pd.DataFrame) -> None:
    """Figures 3.7 and 3.9: accuracy (dotted on test data) and critical sample ratio over training."""
    for name, of in curves.groupby("dataset_label", sort=False):
        mean = of.groupby("step")[[TRAIN, TEST, CSR]].mean()
        (line,) = axes[0].plot(mean.index, mean[TRAIN], label=plain(str(name)))
        axes[0].plot(mean.index, mean[TEST], ":", color=line.get_color())
        axes[1].plot(mean.index, mean[CSR], color=line.get_color())
    axes[0].set(xlabel="step", ylabel="accuracy")
    axes[1].set(xlabel="step", ylabel="critical sample ratio")


def _draw_capacity(axes: Axes, curves: pd.DataFrame) -> None:
    """Figure 3.5: the best test accuracy by the number in the row's label."""
    best = curves.groupby(["dataset_label", "label", "trial"], sort=False)[TEST].max().reset_index()
    best["value"] = best["label"].str.rpartition(" ")[2].astype(float)
    for name, of in best.groupby("dataset_label", sort=False):
        axes.plot(of.groupby("value")[TEST].mean(), "o-", label=plain(str(name)))
    axes.set(xlabel=plain(best["label"].str.rpartition(" ")[0][0]), ylabel=f"best {TEST}")


def _draw_regularizers(axes: Axes, curves: pd.DataFrame) -> None:
    """Figure 3.10: the best test accuracy on `real` by the last training accuracy on `randY`."""
    last = curves[curves["step"] == curves["step"].max()]
    fitted = last[last["dataset_label"] == "randY"].groupby("label", sort=False)[TRAIN].mean()
    real = curves[curves["dataset_label"] == "real"].groupby(["label", "trial"])[TEST].max()
    both = pd.DataFrame({"x": fitted, "y": real.groupby("label").mean()}).reset_index().dropna()
    for name, of in both.groupby(both["label"].str.rpartition(" ")[0], sort=False):
        axes.plot(of.sort_values("x")["x"], of.sort_values("x")["y"], "o-", label=plain(str(name)))
    axes.set(xlabel=f"{TRAIN} on randY", ylabel=f"best {TEST} on real")
