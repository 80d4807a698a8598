"""Rewards of continuous control, predicted from observations with spurious features."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oodbench.datasets import Environment, Metadata, dealt, numbered_environments, register
from oodbench.errors import UserError, missing_package, unknown
from oodbench.files import whole_file
from oodbench.hparams import hparam
from oodbench.seeds import derive
from oodbench.tasks import Task

from .made import MadeDataset

FOLDER = "ControlRewards"
STEPS = 100
"""The actions of an episode."""
LOOKAHEAD, CANDIDATES = 6, 12
"""The actions of a plan, and the plans drawn for each action, while data are made."""
DRAWN = 32
"""The plans drawn for each action when a predictor is tried."""
POLICIES = ("random", "true")
"""The policies that need no predictor."""
SPREADS = (2.0, 0.5)
"""The standard deviations, in turn, of plans drawn around the last one; actions are clipped to [-1, 1]."""

Array = NDArray[np.float64]
Predictor = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ControlTask:
    """A task of the DeepMind Control Suite."""

    hold: float
    """The seconds for which an action is held; the reward is the task's at their end."""
    actions: int
    sizes: Mapping[str, int]
    """The parts of a state and their numbers of dimensions, in the suite's order."""
    spurious: tuple[str, ...]
    """The dimensions that say most about the reward, which are copied by default."""

    @property
    def names(self) -> list[str]:
        """The names of a state's dimensions: `velocity.1`, or `height` if a part has only one dimension."""
        return [
            part if size == 1 else f"{part}.{i}"
            for part, size in self.sizes.items()
            for i in range(size)
        ]


TASKS = {
    # the pole's cosine
    "cartpole_swingup": ControlTask(0.2, 1, {"position": 3, "velocity": 2}, ("position.1",)),
    # the velocity of the hinge that is to spin
    "finger_spin": ControlTask(0.1, 2, {"position": 4, "velocity": 3, "touch": 2}, ("velocity.2",)),
    # the torso's height, and the velocity of walking
    "walker_walk": ControlTask(
        0.1, 6, {"orientations": 14, "height": 1, "velocity": 9}, ("height", "velocity.1")
    ),
}


class Simulator:
    """An episode of a task in the real suite."""

    def __init__(self, task: str, seed: int) -> None:
        """Start at the state that `seed` draws; raises MissingError without the suite."""
        os.environ.setdefault("MUJOCO_GL", "disabled")  # it would search for a display
        try:
            from dm_control import suite
        except ImportError as error:
            raise missing_package(FOLDER, "dm_control", "control") from error
        domain, _, name = task.partition("_")
        environment = suite.load(domain, name, task_kwargs={"random": seed})
        environment.reset()
        self._task, self._physics = environment.task, environment.physics
        self._substeps = round(TASKS[task].hold / self._physics.timestep())

    def state(self) -> Array:
        """What the suite observes, (S,)."""
        observed = self._task.get_observation(self._physics)
        return np.concatenate([np.ravel(part) for part in observed.values()])

    def step(self, action: Array) -> float:
        """Hold an action (A,); the task's reward at the end, in [0, 1]."""
        self._task.before_step(action, self._physics)
        self._physics.step(self._substeps)
        return float(self._task.get_reward(self._physics))

    def scores(self, plans: Array) -> Array:
        """Mean rewards (N,) of `plans` (N, H, A) from the current state, which is restored."""
        here = self._physics.get_state()
        scores = []
        for plan in plans:
            self._put(here)
            scores.append(np.mean([self.step(action) for action in plan]))
        self._put(here)
        return np.array(scores)

    def _put(self, state: Array) -> None:
        self._physics.set_state(state)
        self._physics.forward()


class Planner:
    """Predictive sampling (arXiv:2212.00541): the first action of the best of random plans.

    Plans are drawn around the last best one, moved on by an action.
    """

    def __init__(self, length: int, actions: int, candidates: int, random: Any) -> None:
        self._plan = np.zeros((length, actions))
        self._spreads = np.resize(SPREADS, (candidates, 1, 1))
        self._random = random

    def action(self, scores: Callable[[Array], Array]) -> Array:
        """The action (A,) to take, by the `scores` (N,) of plans (N, H, A)."""
        noise = self._random.normal(size=(len(self._spreads), *self._plan.shape))
        drawn = np.clip(self._plan + self._spreads * noise, -1, 1)
        plans = np.concatenate([drawn, self._plan[None]])
        best = plans[np.argmax(scores(plans))]
        self._plan = np.concatenate([best[1:], np.zeros_like(best[:1])])
        return np.asarray(best[0])

    def random_action(self) -> Array:
        """A random action (A,); half of its components are near or at an end of their range."""
        action: Array = self._random.normal(0, SPREADS[0], self._plan.shape[1])
        return action.clip(-1, 1)


@dataclass(frozen=True)
class Settings:
    """The contents of a dataset on disk."""

    task: str
    episodes: int
    steps: int = STEPS
    lookahead: int = LOOKAHEAD
    candidates: int = CANDIDATES


def file_of(episode: int) -> str:
    """The file of an episode in the set's folder."""
    return f"{episode:05d}.npy"


def write_episode(episode: int, folder: Path, settings: Settings) -> None:
    """Play and write one episode: float32 rows of state, action and reward, (steps, S + A + 1).

    The planner knows the true rewards. A share of the actions, drawn uniformly for each episode, is random.
    """
    random = np.random.default_rng(derive("control", settings.task, episode))
    task = TASKS[settings.task]
    simulator = Simulator(settings.task, int(random.integers(2**32)))
    planner = Planner(settings.lookahead, task.actions, settings.candidates, random)
    share, rows = random.random(), []
    for _ in range(settings.steps):
        state, chance = simulator.state(), random.random()
        action = planner.random_action() if chance < share else planner.action(simulator.scores)
        rows.append(np.concatenate([state, action, [simulator.step(action)]]))
    with whole_file(folder / file_of(episode)) as stream:
        np.save(stream, np.array(rows, np.float32))


@register(
    "ControlRewards",
    Metadata(
        paper="arXiv:2003.00688 (thesis, section 11.1.9.3)",
        licence="Apache-2.0 (dm_control)",
        family="control",
        shift="the scale of spurious features",
        network="MLP",
        steps=1000,
        folder=FOLDER,
    ),
)
class ControlRewards(MadeDataset):
    """The next rewards of a control task from an observation (s + noise, eta s') and the next actions.

    Tasks are those of the DeepMind Control Suite. The spurious features s' are one or two dimensions of the
    state s, copied before the noise is added: they tell more about the reward than s + noise, but their
    scale eta differs between environments, the last of which is the test environment. A trial assigns the
    episodes to environments at random, and draws the noise. Clusters are episodes: splits share none.

    Inputs are the observation and `horizon` actions, standardised by what a run trains on. Targets are
    the `horizon` rewards, each in [0, 1], and the metric is their mean squared error. The episodes are
    made by `python -m oodbench.data make ControlRewards`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(MadeDataset.Options):
        """The task, and what is observed."""

        task: str = hparam("cartpole_swingup", options=tuple(TASKS))
        etas: tuple[float, ...] = hparam((1.0, 2.0, 3.0))
        """The scale of the spurious features, by environment; the last is the test one."""
        noise: float = hparam(0.25, low=0)
        """The standard deviation of the noise, in standard deviations of each dimension of the state.

        The paper does not give the value. Of 0.1, 0.25, 0.5 and 1, the default is the largest with which
        ERM halves the test error of the constant answer on `cartpole_swingup` (0.032 of 0.070).
        """
        spurious: tuple[str, ...] = hparam(())
        """The dimensions of the state that are copied, such as `velocity.1`; by default the task's."""
        horizon: int = hparam(3, low=1, high=STEPS)
        """The number of actions that are seen, and of rewards that are predicted."""
        episodes: int = hparam(200, low=1)
        """The number of episodes in the set that was made."""
        as_test: bool = hparam(False, neutral=False)
        """Whether every environment has the test environment's scale, for a ceiling."""

    options: Options
    options_of_files = ("task", "episodes")
    standardises_targets = True

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self._kind = TASKS[options.task]
        for name in options.spurious:
            if name not in self._kind.names:
                raise unknown("dimension", name, self._kind.names, f"'spurious' of {options.task}")
        copied = options.spurious or self._kind.spurious
        self._spurious = [self._kind.names.index(name) for name in copied]
        valid = 0 not in options.etas
        self.environments = numbered_environments(self, "etas", valid, " other than 0")
        if options.episodes < 2 * len(options.etas):
            raise UserError(
                f"'episodes' in the options of {self.name} must be at least {2 * len(options.etas)}, two "
                f"for each environment, not {options.episodes}"
            )
        self.test_environments = self.environments[-1:]
        observed = len(self._kind.names) + len(self._spurious)
        self.input_shape = (observed + options.horizon * self._kind.actions,)
        self.task = Task("regression", options.horizon)

    def load(self, trial: int) -> dict[str, Environment]:
        """Inputs (N, D) and targets (N, horizon) of each environment; raises UserError without data."""
        episodes = self._episodes
        found = {}
        for i, (name, numbers) in enumerate(dealt(self, len(episodes), trial).items()):
            eta = self.options.etas[-1 if self.options.as_test else i]
            noise = self.generator(trial, "noise", name)
            found[name] = self._environment(episodes[numbers], numbers, eta, noise)
        return found

    def _environment(
        self, episodes: Tensor, numbers: Tensor, eta: float, generator: torch.Generator
    ) -> Environment:
        size = len(self._kind.names)
        states, actions, rewards = episodes[..., :size], episodes[..., size:-1], episodes[..., -1]
        ahead = self.options.horizon
        following = actions.unfold(1, ahead, 1).transpose(2, 3).flatten(2)
        observed = self.observe(states[:, : following.shape[1]], eta, generator)
        x = torch.cat([observed, following], -1)
        y = rewards.unfold(1, ahead, 1)
        clusters = numbers.repeat_interleave(x.shape[1])
        return Environment(x.flatten(0, 1), y.flatten(0, 1).contiguous(), clusters)

    def observe(self, states: Tensor, eta: float, generator: torch.Generator) -> Tensor:
        """The observations (..., O) of `states` (..., S): with noise, and with the spurious features."""
        noise = torch.randn(states.shape, generator=generator)
        noisy = states + self.options.noise * self._scale * noise
        return torch.cat([noisy, eta * states[..., self._spurious]], -1)

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """A function that standardises inputs."""
        known = torch.cat([environment.x for environment in training.values()])
        mean, scale = known.mean(0), known.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        return lambda x: (x - mean) / scale

    def mean_reward(self, policy: Predictor | str, trial: int, episode: int = 0) -> float:
        """The mean reward, in [0, 1], of an episode that is played in the test environment.

        The policy is `random`, or a planner that looks `horizon` actions ahead: by the `true` rewards, or
        by the rewards (N, horizon) that a predictor gives for inputs (N, D) as `load` has them. The
        episodes of a trial start alike for all policies. Raises UserError for another name, and without
        data or suite.
        """
        if not callable(policy) and policy not in POLICIES:
            raise unknown("policy", policy, POLICIES)
        options, kind = self.options, self._kind
        random = np.random.default_rng(self.seed(trial, "play", episode))
        generator = self.generator(trial, "play", episode)
        simulator = Simulator(options.task, int(random.integers(2**32)))
        planner = Planner(options.horizon, kind.actions, DRAWN, random)
        total = 0.0
        for _ in range(STEPS):
            if callable(policy):
                state = torch.from_numpy(simulator.state()).float()
                seen = self.observe(state, options.etas[-1], generator)
                action = planner.action(partial(_predicted, policy, seen))
            elif policy == "true":
                action = planner.action(simulator.scores)
            else:
                action = planner.random_action()
            total += simulator.step(action) / STEPS
        return total

    @cached_property
    def _scale(self) -> Tensor:
        """The standard deviation (S,) of each dimension of the state."""
        return self._episodes[..., : len(self._kind.names)].flatten(0, 1).std(0)

    @cached_property
    def _episodes(self) -> Tensor:
        """The rows of all episodes, (episodes, STEPS, S + A + 1)."""
        self.check()
        files = [self.file(f"{self.folder}/{file_of(i)}") for i in range(self.options.episodes)]
        return torch.stack([torch.from_numpy(np.load(file)) for file in files])

    @property
    def folder(self) -> str:
        """The folder of the task's episodes."""
        return f"{FOLDER}/{self.options.task}"

    @property
    def settings(self) -> Settings:
        """The task and the sizes of the set."""
        return Settings(self.options.task, self.options.episodes)

    @property
    def pieces(self) -> dict[int, list[str]]:
        """The file of each episode."""
        return {episode: [file_of(episode)] for episode in range(self.options.episodes)}

    def writer(self, folder: Path) -> Callable[[int], None]:
        """`write_episode`; raises MissingError without the suite."""
        Simulator(self.options.task, 0)
        return partial(write_episode, folder=folder, settings=self.settings)


def _predicted(predict: Predictor, seen: Tensor, plans: Array) -> Array:
    """Scores (N,) of plans (N, H, A): the mean rewards predicted from the observation `seen` (O,)."""
    actions = torch.from_numpy(plans).float().flatten(1)
    with torch.no_grad():
        rewards = predict(torch.cat([seen.expand(len(actions), -1), actions], -1))
    return rewards.double().mean(-1).numpy()
