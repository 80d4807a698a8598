"""Evaluated weights, against averages of all weights that a run has been through."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from oodbench.errors import UserError
from oodbench.results.directory import RunDirectory, kept_weights
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.train.averages import AVERAGES, valley
from oodbench.train.evaluate import evaluate, mean_loss
from oodbench.train.execute import execute
from oodbench.train.run import Run
from oodbench.train.settings import Interrupts, TrainSettings
from oodbench.train.vectorized.bundles import why_not
from oodbench.train.vectorized.program import VectorizedProgram
from tests.helpers.float64 import in_float64
from tests.helpers.kills import checkpoint_every, killed_and_resumed
from tests.helpers.sweeps import tiny

SPIRALS: dict[str, Any] = {
    "name": "Spirals",
    "num_environments": 3,
    "num_examples": 40,
    "num_test_examples": 30,
    "shortcut_dims": 2,
}
DIGITS: dict[str, Any] = {"name": "ColoredDigits", "copies": 1}
MLP: dict[str, Any] = {"name": "MLP", "hparams": {"width": 8, "depth": 1, "dropout": 0.0}}
CONV: dict[str, Any] = {"name": "ConvNet", "hparams": {"width": 2, "depth": 1}}
GROUPS: dict[str, dict[str, Any]] = {
    "GroupDRO": {"over": "groups"},
    "JTT": {},
    "LISA": {"domains": "attributes"},
}
"""Methods that know the groups of examples, with their hyperparameters."""
EVERY, STEPS = 6, 57
"""The last window is half as long as the others."""


def specs(average: Any, algorithm: str = "ERM", **changes: Any) -> list[RunSpec]:
    hparams = {"lr": 0.05, "batch_size": 8} | GROUPS.get(algorithm, {})
    row = {"name": algorithm, "average": average, "hparams": hparams}
    values = {
        "name": "t", "datasets": [DIGITS if algorithm in GROUPS else SPIRALS], "algorithms": [row],
        "trials": 1, "steps": STEPS, "evaluate_every": EVERY, "network": MLP,
    }  # fmt: skip
    return list(make_plan(validate(values | changes, "t")).runs.values())


def weights(run: Run) -> dict[str, Tensor]:
    names = dict(run.algorithm.named_parameters()) | dict(run.algorithm.named_buffers())
    return {n: w.detach().clone() for n, w in names.items() if w.is_floating_point()}


def mean(of: list[dict[str, Tensor]], shares: list[float]) -> dict[str, Tensor]:
    total = sum(shares)
    return {
        n: sum(
            (s / total * w[n] for s, w in zip(shares, of, strict=True)), torch.zeros_like(of[0][n])
        )
        for n in of[0]
    }


def ema(history: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    counted = history[11:] or history[-1:]  # from a fifth of 57 steps on
    return mean(counted, [0.9 ** (len(counted) - i) for i in range(len(counted))])


def swa(history: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    counted = history[43:] or history[-1:]
    return mean(counted, [1.0] * len(counted))


CASES: list[tuple[dict[str, Any], Callable[[list[dict[str, Tensor]]], dict[str, Tensor]]]] = [
    ({"name": "ema", "decay": 0.9, "start": 0.2}, ema),
    ({"name": "swa", "start": 0.75}, swa),
]


@pytest.mark.parametrize(("average", "wanted"), CASES, ids=["ema", "swa"])
@pytest.mark.parametrize(
    ("dataset", "network"), [(SPIRALS, MLP), (DIGITS, CONV)], ids=["MLP", "batch norm"]
)
def test_what_is_evaluated_is_the_average_of_all_weights_so_far(
    average: dict[str, Any],
    wanted: Callable[[list[dict[str, Tensor]]], dict[str, Tensor]],
    dataset: dict[str, Any],
    network: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_float64(monkeypatch)
    (spec,) = specs(average, datasets=[dataset], network=network)
    run, history = Run(spec, TrainSettings()), []
    for _ in range(STEPS):
        run.run_steps(1)
        history.append(weights(run))
        with run.evaluated_weights():
            found = weights(run)
        for name, value in wanted(history).items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
        assert all(torch.equal(w, history[-1][n]) for n, w in weights(run).items())
    other = Run(replace(spec, average=None), TrainSettings())
    with torch.no_grad():
        for name, value in wanted(history).items():
            dict(other.algorithm.state_dict(keep_vars=True))[name].copy_(value)
    for mine, theirs in zip(run.evaluate(), other.evaluate(), strict=True):
        assert mine.value == pytest.approx(theirs.value, rel=1e-9)


def authors_windows(losses: list[float], patience: int, overfit: int, ratio: float) -> list[int]:
    """The windows in SWAD's average by the queues of arXiv:2102.08604's code, replayed on indices."""
    converge: list[int] = []
    smooth: list[int] = []
    final: list[int] | None = None
    bottom, threshold, dead = -1, math.inf, False
    for place in range(len(losses)):
        if dead:
            break
        converge, smooth = ([*converge, place])[-patience:], ([*smooth, place])[-overfit:]
        if final is None:
            values = [losses[i] for i in converge]
            if len(converge) == patience and values.index(min(values)) == 0:
                final, bottom = [], converge[0]
                threshold = sum(values) / patience * (1 + ratio)
                if overfit < patience:
                    final += [converge[1 + i] for i in range(patience - overfit)]
                elif overfit > patience:
                    head, start = smooth[: overfit - patience + 1], 0
                    for i in reversed(range(len(head))):
                        if losses[head[i]] > threshold:
                            start = i + 1
                            break
                    final += head[start + 1 :]
        elif smooth[0] >= bottom:
            if min(losses[i] for i in smooth) > threshold:
                dead = True
            else:
                final.append(smooth[0])
    if final is None:
        return [len(losses) - 1]
    if not dead:
        smooth.pop(0)
        while smooth and min(losses[i] for i in smooth) <= threshold:
            final.append(smooth.pop(0))
    return final or [bottom]


def test_the_valley_is_that_of_the_authors_code() -> None:
    joined, ending = valley([3, 2, 1, 2, 3, 4, 5, 6, 7, 8], 3, 6, 0.3)
    assert (joined, ending) == ([2, 3, 2, 3], [])
    assert valley([5, 4, 3, 2, 1], 3, 6, 0.3) == ([], [4])
    assert valley([], 3, 6, 0.3) == ([], [])
    generator = torch.Generator().manual_seed(0)
    kinds = set()
    for seed in range(60):
        slope = torch.linspace(3, 0, 24).square() * (seed % 3) / 3
        rise = torch.linspace(0, 1, 24) * (seed % 5)
        losses = (torch.rand(24, generator=generator) + slope + rise).tolist()
        for patience, overfit in ((3, 6), (3, 3), (4, 2), (1, 4)):
            for ratio in (0.0, 0.3):
                for count in range(1, 25):
                    wanted = authors_windows(losses[:count], patience, overfit, ratio)
                    joined, ending = valley(losses[:count], patience, overfit, ratio)
                    assert joined + ending == wanted
                    kinds.add((bool(joined), bool(ending)))
    assert len(kinds) == 3


@pytest.mark.parametrize(
    ("dataset", "network"), [(SPIRALS, MLP), (DIGITS, CONV)], ids=["MLP", "batch norm"]
)
@pytest.mark.parametrize("held_out", ["out splits", "validation environments"])
def test_swad_averages_the_windows_of_the_valley(
    dataset: dict[str, Any],
    network: dict[str, Any],
    held_out: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_float64(monkeypatch)
    changes: dict[str, Any] = {"datasets": [dataset], "network": network}
    if held_out != "out splits":
        changes |= {"holdout": 0.0, "validation_environments": 1}
    optimum = 2 if held_out == "out splits" else 1
    numbers = {"optimum_patience": optimum, "overfit_patience": 3, "tolerance": 0.01}
    (spec,) = specs({"name": "swad", **numbers}, **changes)
    run = Run(spec, TrainSettings())
    history: list[dict[str, Tensor]] = []
    losses: list[float] = []
    sizes = set()
    while run.step < STEPS:
        for _ in range(min(EVERY, STEPS - run.step)):
            run.run_steps(1)
            history.append(weights(run))
        losses.append(raw_loss(run))
        run.evaluate()
        windows = [mean(w, [1.0] * len(w)) for w in batched(history, EVERY)]
        chosen = authors_windows(losses, optimum, 3, 0.01)
        sizes.add(len(chosen))
        wanted = mean([windows[i] for i in chosen], [1.0] * len(chosen))
        with run.evaluated_weights():
            found = weights(run)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
    assert len(sizes) > 1


def batched(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def raw_loss(run: Run) -> float:
    """The mean loss of the last weights over what SWAD validates on, from evaluations of everything."""
    validation = run.spec.validation_environments
    run.algorithm.eval()
    with torch.no_grad():
        found = evaluate(run.predict, run.scored, run.data.splits, run.problem.task)
    run.algorithm.train()
    if validation:
        return mean_loss([e for e in found if e.environment in validation], run.problem.task)
    chosen = [e for e in found if e.environment in run.names and e.split == "out"]
    return mean_loss(chosen, run.problem.task)


@pytest.mark.parametrize("average", [*AVERAGES])
@pytest.mark.parametrize(
    "algorithm",
    [
        "ERM",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("ANDMask", "DANN", "IRM", *GROUPS)),
    ],
)
def test_a_vectorized_run_has_the_averages_of_a_run_alone(
    average: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_float64(monkeypatch)
    alike = specs(average, algorithm, trials=3)
    alone = [Run(spec, TrainSettings()) for spec in alike]
    together = [Run(spec, TrainSettings()) for spec in alike]
    assert why_not(alone[0]) is None
    program = VectorizedProgram(together)
    for steps in (EVERY,) * (STEPS // EVERY):
        program.run_steps(steps)
        found = program.evaluate(range(len(alike)))
        for run, evaluations in zip(alone, found, strict=True):
            run.run_steps(steps)
            for mine, theirs in zip(run.evaluate(), evaluations, strict=True):
                assert mine.value == pytest.approx(theirs.value, rel=1e-7, abs=1e-9)
    for run, other in zip(alone, together, strict=True):
        with run.evaluated_weights(), other.evaluated_weights():
            for p, q in zip(run.algorithm.parameters(), other.algorithm.parameters(), strict=True):
                torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("average", [*AVERAGES])
def test_an_average_does_not_depend_on_who_is_trained_beside_it(average: str) -> None:
    alike = specs(average, trials=4)

    def found(size: int) -> list[Any]:
        results = []
        for start in range(0, len(alike), size):
            runs = [Run(spec, TrainSettings()) for spec in alike[start : start + size]]
            program = VectorizedProgram(runs)
            for _ in range(4):
                program.run_steps(EVERY)
                evaluations = program.evaluate(range(len(runs)))
            results += evaluations
        return results

    assert found(1) == found(4) == found(3)


@pytest.mark.parametrize("average", [*AVERAGES])
@pytest.mark.parametrize(
    ("algorithm", "vectorize"),
    [
        ("ERM", 1),
        pytest.param("ERM", 2, marks=pytest.mark.slow),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in GROUPS),
    ],
)
def test_a_killed_run_goes_on_to_the_same_records(
    average: str,
    algorithm: str,
    vectorize: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint_every(5, monkeypatch)
    (spec,) = specs(average, algorithm)
    settings = TrainSettings(vectorize=vectorize)
    assert len(killed_and_resumed(spec, tmp_path, (20, 25, 36, 54), settings)) == 10


def test_training_goes_on_from_the_last_weights() -> None:
    """Losses and weights are those of the run without an average, evaluations are not."""
    (plain,), (averaged,) = specs("none"), specs("swa")
    found = []
    for spec in (plain, averaged):
        run = Run(spec, TrainSettings())
        for _ in range(9):
            run.run_steps(EVERY)
            evaluations = run.evaluate()
        found.append((run.sums, weights(run), evaluations))
    (sums, last, values), (other_sums, other_last, other_values) = found
    assert sums == other_sums and values != other_values
    assert all(torch.equal(w, other_last[n]) for n, w in last.items())


def test_the_id_holds_an_average_and_all_of_its_numbers() -> None:
    (plain,), (none,), (named,) = specs("none"), specs({"name": "none"}), specs("swad")
    (full,) = specs({"name": "swad", "tolerance": 0.3})
    (other,) = specs({"name": "swad", "tolerance": 0.2})
    assert plain == none and plain.average is None and plain.label == "ERM"
    assert named == full and named.average == {
        "name": "swad", "optimum_patience": 3, "overfit_patience": 6, "tolerance": 0.3
    }  # fmt: skip
    assert len({s.id for s in (plain, named, other)}) == 3
    assert named.label == "ERM + SWAD" and named.bundle_key != plain.bundle_key


def test_a_method_stands_beside_itself_with_averages() -> None:
    rows = ["ERM", *({"name": "ERM", "average": a} for a in AVERAGES)]
    labels = {spec.label for spec in tiny(algorithms=rows).runs.values()}
    assert labels == {"ERM", "ERM + EMA", "ERM + SWA", "ERM + SWAD"}


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ({"name": "ERM", "average": "swat"}, {}, "unknown average 'swat'; did you mean swa"),
        (
            {"name": "ERM", "average": {"name": "ema", "decays": 0.5}},
            {},
            "unknown name 'decays' in the average ema; did you mean decay",
        ),
        (
            {"name": "ERM", "average": {"name": "ema", "decay": 1.5}},
            {},
            "'decay' in the average ema must be between 0.0 and 1.0, not 1.5",
        ),
        (
            {"name": "ERM", "average": "swad"},
            {"holdout": 0},
            "swad needs validation losses: a `holdout` above 0, or validation environments",
        ),
        (
            {"name": "LeastSquares", "average": "ema"},
            {},
            "it trains no network whose weights could be averaged",
        ),
    ],
)
def test_an_average_that_cannot_be_is_refused_before_training(
    row: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        plan = tiny(algorithms=[row], **changes)
        assert not plan.runs
        raise UserError(plan.impossible[0].reason)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_method_composes_with_each_average(tmp_path: Path) -> None:
    """From a sweep's row to the records, interrupted once."""
    for average in AVERAGES:
        (spec,) = specs(average, "Fish")
        directory = RunDirectory(tmp_path / average)
        interrupts = Interrupts()
        interrupts.ask_to_stop()
        assert execute(spec, directory, TrainSettings(), interrupts=interrupts)[0] == "interrupted"
        assert execute(spec, directory, TrainSettings()) == ("done", "")
        assert [r["step"] for r in directory.records()] == spec.due()


def test_a_run_without_validation_examples_says_so() -> None:
    (spec,) = specs("swad")
    with pytest.raises(UserError, match="no example is held out to be validated on"):
        Run(replace(spec, holdout=0.0), TrainSettings())


@pytest.mark.parametrize("vectorize", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("average", [*AVERAGES])
def test_kept_weights_are_the_evaluated_ones(average: str, vectorize: int, tmp_path: Path) -> None:
    """The last ones give the last record's values to a run without an average."""
    settings = TrainSettings(keep_weights=("last",), vectorize=vectorize)
    for spec in specs(average, trials=2):
        directory = RunDirectory(tmp_path / spec.id)
        assert execute(spec, directory, settings) == ("done", "")
        other = Run(replace(spec, average=None), TrainSettings())
        (path,) = kept_weights(directory).values()
        other.algorithm.load_state_dict(load_file(path))
        found = {(e.environment, e.split, e.metric): e.value for e in other.evaluate()}
        for e in directory.records()[-1]["evaluations"]:
            wanted = found[e["environment"], e["split"], e["metric"]]
            assert e["value"] == pytest.approx(wanted, rel=1e-5)
