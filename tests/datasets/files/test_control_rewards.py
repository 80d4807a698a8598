import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oodbench.datasets.control_rewards import STEPS, TASKS, Planner, Settings, Simulator, file_of
from oodbench.datasets.made import write_manifest

from oodbench.datasets import control_rewards, make, md5
from oodbench.errors import UserError
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan
from tests.helpers.commands import type_in
from tests.helpers.data import control_episodes

TASK, EPISODES = "finger_spin", 6
OPTIONS = {"task": TASK, "episodes": EPISODES}


def made(data_dir: Path, **options: object) -> Any:
    return make("ControlRewards", {**OPTIONS, **options}, data_dir)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("control")
    control_episodes.write(data_dir, TASK, EPISODES)
    return data_dir


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written / "ControlRewards", tmp_path / "ControlRewards")
    return tmp_path


@pytest.mark.parametrize("task", TASKS)
def test_states_and_actions_are_the_suites(task: str) -> None:
    simulator, kind = Simulator(task, 3), TASKS[task]
    assert len(simulator.state()) == len(kind.names)
    assert set(kind.spurious) <= set(kind.names)
    assert np.array_equal(simulator.state(), Simulator(task, 3).state())
    assert not np.array_equal(simulator.state(), Simulator(task, 4).state())
    assert 0 <= simulator.step(np.ones(kind.actions)) <= 1
    plans = np.random.default_rng(0).uniform(-1, 1, (3, 2, kind.actions))
    before = simulator.state()
    scores = simulator.scores(plans)
    assert np.array_equal(simulator.state(), before)
    rewards = [simulator.step(action) for action in plans[1]]
    assert np.mean(rewards) == pytest.approx(scores[1], abs=1e-6)


def test_copied_dimensions_say_what_rewards_depend_on() -> None:
    simulator = Simulator("walker_walk", 0)
    places = [TASKS["walker_walk"].names.index(name) for name in ("height", "velocity.1")]
    physics = simulator._physics
    for _ in range(5):
        simulator.step(np.full(6, 0.3))
    height, speed = simulator.state()[places]
    assert height == pytest.approx(physics.torso_height())
    assert speed == pytest.approx(physics.horizontal_velocity(), abs=1.0)  # of the torso alone
    simulator = Simulator("finger_spin", 0)
    simulator.step(np.ones(2))
    spinning = simulator.state()[TASKS["finger_spin"].names.index("velocity.2")]
    assert spinning == simulator._physics.hinge_velocity()


def test_the_planner_takes_the_best_plan_and_goes_on_from_it() -> None:
    planner = Planner(2, 1, 64, np.random.default_rng(0))
    target = np.array([[0.5], [-0.5]])
    action = planner.action(lambda plans: -np.abs(plans - target).sum((1, 2)))
    assert abs(action[0] - 0.5) < 0.3
    again = planner.action(lambda plans: np.arange(len(plans)))  # the last one is the rest
    assert abs(again[0] + 0.5) < 0.3
    assert all(np.abs(planner.random_action()) <= 1 for _ in range(9))


def test_an_episode_depends_on_its_number_alone(tmp_path: Path) -> None:
    settings = Settings(TASK, 9, steps=12)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for episode in (4, 7):
            control_rewards.write_episode(episode, tmp_path / folder, settings)
    a, b = (np.load(tmp_path / f / file_of(4)) for f in "ab")
    assert np.array_equal(a, b)
    assert not np.array_equal(a, np.load(tmp_path / "a" / file_of(7)))
    assert a.shape == (12, 9 + 2 + 1) and a.dtype == np.float32
    assert np.abs(a[:, 9:11]).max() <= 1 and 0 <= a[:, -1].min() and a[:, -1].max() <= 1


@pytest.mark.slow
def test_plans_earn_more_than_chance() -> None:
    random, simulator = np.random.default_rng(0), Simulator("cartpole_swingup", 0)
    planner = Planner(control_rewards.LOOKAHEAD, 1, 8, random)
    planned = [simulator.step(planner.action(simulator.scores)) for _ in range(STEPS)]
    simulator = Simulator("cartpole_swingup", 0)
    chance = [simulator.step(planner.random_action()) for _ in range(STEPS)]
    assert np.mean(planned) > np.mean(chance) + 0.1


def test_inputs_are_observations_and_actions_and_targets_later_rewards(written: Path) -> None:
    dataset = made(written, noise=0.0)
    rows = [np.load(written / "ControlRewards" / TASK / file_of(i)) for i in range(EPISODES)]
    found = dataset.load(0)
    assert tuple(found) == dataset.environments == ("1", "2", "3")
    assert dataset.test_environments == ("3",)
    assert dataset.input_shape == (9 + 1 + 3 * 2,) and dataset.task.num_outputs == 3
    seen = []
    for eta, environment in zip((1, 2, 3), found.values(), strict=True):
        clusters = environment.clusters
        assert environment.x.shape == (2 * (STEPS - 2), 16)
        for episode in sorted({*clusters.tolist()}):
            mine = clusters == episode
            x, y = environment.x[mine], environment.y[mine]
            for t in (0, 50, STEPS - 3):
                state, actions = rows[episode][t, :9], rows[episode][t : t + 3, 9:11]
                expected = np.concatenate([state, eta * state[[6]], actions.ravel()])
                np.testing.assert_allclose(x[t].numpy(), expected, rtol=1e-6)
                np.testing.assert_array_equal(y[t].numpy(), rows[episode][t : t + 3, -1])
            seen.append(episode)
    assert sorted(seen) == list(range(EPISODES))


def test_spurious_features_are_copied_before_the_noise(written: Path) -> None:
    options: dict[str, Any] = {"spurious": ["touch.1", "position.0"], "etas": [1, 5]}
    noisy, plain = (made(written, noise=noise, **options) for noise in (2.0, 0.0))
    for name, environment in noisy.load(1).items():
        clean = plain.load(1)[name].x
        torch.testing.assert_close(environment.x[:, 9:], clean[:, 9:])
        torch.testing.assert_close(clean[:, 9:11], float(name) * clean[:, [8, 0]])
        spread = (environment.x - clean)[:, :9].std(0) / noisy._scale
        assert spread.min() > 1.6 and spread.max() < 2.4
    other = noisy.load(2)
    assert not torch.equal(other["1"].x, noisy.load(1)["1"].x)
    same = made(written, noise=2.0, as_test=True, **options).load(1)
    torch.testing.assert_close(same["1"].x[:, 9], 5 * plain.load(1)["1"].x[:, 9])


def test_standardised_by_what_is_trained_on(written: Path) -> None:
    dataset = made(written)
    environments = dataset.load(0)
    change = dataset.fit({"1": environments["1"]})
    changed = change(environments["1"].x)
    torch.testing.assert_close(changed.mean(0), torch.zeros(16), atol=1e-4, rtol=0)
    torch.testing.assert_close(changed.std(0, correction=0), torch.ones(16), atol=1e-4, rtol=0)


def test_the_sweep_has_all_rows_draws_and_trials(written: Path) -> None:
    small = [f"datasets={json.dumps([{'name': 'ControlRewards', **OPTIONS}])}"]
    plan = make_plan(read_sweep(find_sweep("control-rewards"), small), written)
    assert len(plan.runs) == 6 * 8 * 10 and not plan.impossible


def test_policies_start_alike_and_predictions_lead(written: Path) -> None:
    dataset = made(written)
    inputs = []

    def still(x: torch.Tensor) -> torch.Tensor:
        inputs.append(x)
        return -x[:, -6:].abs()[:, ::2]

    calm, random = dataset.mean_reward(still, 0), dataset.mean_reward("random", 0)
    assert 0 <= calm <= 1 and 0 <= random <= 1
    assert random == dataset.mean_reward("random", 0)
    assert len(inputs) == STEPS and inputs[0].shape == (33, 16)
    assert (inputs[0][:, :10] == inputs[0][0, :10]).all()
    again = list(inputs)
    inputs.clear()
    dataset.mean_reward(still, 0)
    assert all(torch.equal(a, b) for a, b in zip(again, inputs, strict=True))
    inputs.clear()
    dataset.mean_reward(still, 1)
    assert not torch.equal(again[0], inputs[0])
    with pytest.raises(UserError, match="unknown policy 'rando'; did you mean random"):
        dataset.mean_reward("rando", 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "walker_wolk"}, "did you mean walker_walk?"),
        ({"spurious": ["velocity.7"]}, "did you mean velocity."),
        ({"etas": [1]}, "must be at least 2 distinct numbers other than 0, not [1.0]"),
        ({"etas": [1, 2, 2]}, "must be at least 2 distinct numbers other than 0"),
        ({"episodes": 5}, "must be at least 6, two for each environment, not 5"),
        ({"horizon": 0}, "must be between 1 and 100, not 0"),
    ],
)
def test_options_that_do_not_exist(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make("ControlRewards", OPTIONS | options)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_data_that_are_not_there_or_made_with_other_options(copy: Path, tmp_path: Path) -> None:
    command = f"`python -m oodbench.data make ControlRewards --data-dir {copy}"
    for options, named in (({}, ""), ({"task": "walker_walk"}, " --set task=walker_walk")):
        words = rf"manifest\.json is missing; get it with {command}{named}`"
        with pytest.raises(UserError, match=words):
            make("ControlRewards", options, copy).check()
    with pytest.raises(UserError, match="the set has episodes 6, not 7"):
        made(copy, episodes=7).load(0)
    write_manifest(copy / "ControlRewards" / TASK, Settings(TASK, EPISODES))
    with pytest.raises(UserError, match=r"of an unfinished set; `.*` continues it"):
        made(copy).load(0)


def test_damaged_files(copy: Path) -> None:
    file = copy / "ControlRewards" / TASK / file_of(2)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"!")
    with pytest.raises(UserError, match="is damaged"):
        made(copy).load(0)
    file.unlink()
    with pytest.raises(UserError, match=f"{file} is missing; get it with"):
        made(copy).load(0)
    (file.parent / "manifest.json").write_text('{"settings": {"task": "finger_spin"}}')
    with pytest.raises(UserError, match="is damaged: it is not the manifest of a set"):
        made(copy).check()


@pytest.mark.nightly
def test_the_command_makes_a_set_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    flags = ["data", "make", "ControlRewards", "--data-dir", str(tmp_path), "--set", f"task={TASK}"]
    assert "ControlRewards: 6 files" in type_in(*flags, "--set", "episodes=6", code=0).output
    folder = tmp_path / "ControlRewards" / TASK
    before = {f.name: (md5(f), f.stat().st_mtime_ns) for f in sorted(folder.glob("*.npy"))}
    (folder / file_of(1)).unlink()
    (folder / file_of(3)).write_bytes(b"damaged")
    type_in(*flags, "--set", "episodes=6", code=0)
    after = {f.name: (md5(f), f.stat().st_mtime_ns) for f in sorted(folder.glob("*.npy"))}
    assert {name: of[0] for name, of in after.items()} == {n: of[0] for n, of in before.items()}
    assert sum(after[name] == before[name] for name in before) == 4
    other = type_in(*flags, "--set", "episodes=8", code=2)
    assert f"{folder} holds another set" in other.stderr
    assert other.stderr.count("\n") == 1
    assert "made by playing" in type_in(*flags, "--from", tmp_path, code=2).stderr


def test_without_the_suite(written: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "dm_control", None)
    dataset = made(written)
    assert len(dataset.load(0)) == 3  # reading needs none
    with pytest.raises(UserError, match=r"dm_control: `pip install 'oodbench\[control\]'`"):
        dataset.mean_reward("random", 0)
    with pytest.raises(UserError, match=r"dm_control: `pip install 'oodbench\[control\]'`"):
        dataset.make(tmp_path, None, 1)
    assert not list(tmp_path.iterdir())
