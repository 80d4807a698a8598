import math
import random
import sys
from collections.abc import Mapping

import optuna as library
import pytest

from oodbench.algorithms import algorithms
from oodbench.errors import MissingError
from oodbench.hparams import (
    Value,
    checked,
    choice,
    distributions,
    draw,
    log_uniform,
    log_uniform_int,
    uniform,
    uniform_int,
)
from oodbench.networks.base import networks
from oodbench.sweep.tpe import Space, optuna, suggest

SPACE: Space = {
    "lr": log_uniform(1e-4, 1.0),
    "width": log_uniform_int(4, 64),
    "depth": uniform_int(1, 3),
    "tau": uniform(0.0, 1.0),
    "optimizer": choice("adam", "sgd", None),
}


def drawn(count: int) -> list[dict[str, Value]]:
    stream = random.Random(0)
    return [{n: d.at(stream.random()) for n, d in SPACE.items()} for _ in range(count)]


def loss(values: Mapping[str, Value]) -> float:
    lr, tau = float(str(values["lr"])), float(str(values["tau"]))
    return (math.log10(lr) + 2) ** 2 + (tau - 0.7) ** 2 + float(values["optimizer"] != "sgd")


def test_it_is_what_optuna_asks_next() -> None:
    seen = [(values, loss(values)) for values in drawn(12)]
    optuna()
    study = library.create_study(direction="minimize")
    for values, score in seen:
        study.enqueue_trial(values)
        trial = study.ask()
        trial.suggest_float("lr", 1e-4, math.nextafter(1.0, 0.0), log=True)
        trial.suggest_int("width", 4, 63, log=True)
        trial.suggest_int("depth", 1, 3)
        trial.suggest_float("tau", 0.0, math.nextafter(1.0, 0.0))
        trial.suggest_categorical("optimizer", ("adam", "sgd", None))
        study.tell(trial, score)
    study.sampler = library.samplers.TPESampler(n_startup_trials=1, seed=7)
    asked = study.ask(study.trials[0].distributions).params
    assert suggest(SPACE, seen, [], 7) == asked
    assert suggest(SPACE, seen, [], 8) != asked


def test_it_beats_a_random_search() -> None:
    chosen = [(values, loss(values)) for values in drawn(10)]
    for k in range(10, 60):
        values = suggest(SPACE, chosen, [], k)
        chosen.append((values, loss(values)))
    rivals = sorted(loss(values) for values in drawn(60)[10:])
    ours = sorted(score for _, score in chosen[10:])
    assert ours[0] < rivals[0] and ours[25] < rivals[25] / 3


def test_no_score_is_the_worst_score() -> None:
    space = {"x": uniform(0.0, 1.0)}
    seen = [({"x": k / 40}, math.nan if k < 20 else 1.0) for k in range(40)]
    found = [suggest(space, seen, [], seed)["x"] for seed in range(20)]
    assert sum(float(str(x)) > 0.5 for x in found) >= 18


def test_it_goes_where_no_running_draw_is() -> None:
    space = {"x": uniform(0.0, 1.0)}
    seen = [({"x": k / 10}, abs(k / 10 - 0.3)) for k in range(10)]

    def near(running: list[dict[str, Value]]) -> int:
        found = [suggest(space, seen, running, seed)["x"] for seed in range(20)]
        return sum(abs(float(str(x)) - 0.3) < 0.05 for x in found)

    assert near([{"x": 0.3}] * 8) < near([]) / 2


def test_values_outside_of_the_space_are_left_out() -> None:
    seen = [(values, loss(values)) for values in drawn(12)]
    outside = dict.fromkeys(SPACE, 0.0)
    first = suggest(SPACE, seen, [], 0)
    assert suggest(SPACE, [(outside, 0.0), *seen], [outside], 0) == first


@pytest.mark.parametrize("name", [*algorithms, *networks])
def test_every_space_of_ours_is_kept(name: str) -> None:
    hparams = (algorithms if name in algorithms else networks).get(name).Hparams
    for family in ("", "synthetic", "small_images"):
        found = distributions(hparams, family)
        space = {n: d for n, d in found.items() if d is not None}
        if not space:
            continue
        draws = [draw(hparams, name, k, family) for k in range(1, 13)]
        seen = [({n: d[n] for n in space}, float(k)) for k, d in enumerate(draws)]
        for seed in range(3):
            values = suggest(space, seen, [], seed)
            assert checked(hparams, values, name)
            for n, distribution in space.items():
                if distribution.kind == "choice":
                    assert values[n] in distribution.arguments
                else:
                    low, high = (float(str(a)) for a in distribution.arguments)
                    assert math.floor(low) <= float(str(values[n])) < high


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingError, match=r"package optuna: `pip install 'oodbench\[search\]'`"):
        optuna()
