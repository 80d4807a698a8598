"""Plug-ins that raise or return nonsense in one hook each, as the texts of modules."""

METHOD = '''
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, register
from oodbench.steps import CustomStep


@register("Bad", paper="none")
class Bad({base}):
    """A bad method."""

    def predict(self, x):
        return self.network(x)

{body}
'''
DATASET = '''
import torch

from oodbench.datasets import Dataset, Environment, Metadata, register
from oodbench.tasks import Task


@register("Bad", Metadata(paper="none", licence="none", family="", shift="none", network="MLP", steps=2))
class Bad(Dataset):
    """A bad dataset."""

    environments = ("a", "b", "c")
    test_environments = ("c",)
    input_shape = (2,)
    task = Task("binary")

    def load(self, trial):
        x = torch.ones(8, 2)
        return {{name: Environment(x, (x[:, 0] > 0).float()) for name in self.environments}}

{body}
'''
RULE = '''
import pandas as pd

from oodbench.selection import Rule, records_on, register


@register("bad")
class Bad(Rule):
    """A bad rule."""

    summary = "bad"
    needs = "nothing"

    def evidence(self, runs):
        return records_on(runs, "training_environments", "out")

{body}
'''
METRIC = '''
import torch

from oodbench.metrics import Metric, register


@register("bad")
class Bad(Metric):
    """A bad metric."""

{body}
'''
LAUNCHER = '''
from oodbench.sweep.launchers import register
from oodbench.sweep.launchers.local import Debug


@register("bad")
class Bad(Debug):
    """A bad launcher."""

{body}
'''
NETWORK = '''
import torch
from torch import nn

from oodbench.networks.base import Network, register


@register("Bad")
class Bad(Network):
    """A bad network."""

    def __init__(self, input_shape, num_outputs, hparams):
        super().__init__()
        self.hparams, self.num_features = hparams, 3
        self.featurizer = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
        self.classifier = nn.Linear(3, num_outputs)

{body}
'''
RAISES = "raise KeyError('on purpose')"

BAD: dict[str, tuple[str, str]] = {
    **{
        f"method, {name} raises": (METHOD, f"    {line}\n        {RAISES}")
        for name, line in {
            "skip": "@classmethod\n    def skip(cls, problem):",
            "constructor": "def __init__(self, network, problem, hparams):",
            "noise": "def noise(self, batch, generator):",
            "prepare": "def prepare(self, batch):",
            "next_buffers": "def next_buffers(self, out):",
            "objective": "def objective(self, out):",
            "combine": "def combine(self, gradients):",
            "predict": "def predict(self, x):",
        }.items()
    },
    **{
        f"own step, {name} raises": (METHOD, f"    {line}\n        {RAISES}")
        for name, line in {
            "update": "def update(self, batch, step):",
            "configure": "def configure(self):",
            "schedule": "def schedule(self, step, rates):",
            "environments_at": "def environments_at(self, step):",
        }.items()
    },
    "method, skip returns a number": (
        METHOD,
        "    @classmethod\n    def skip(cls, problem):\n        return 3",
    ),
    "method, noise returns None": (
        METHOD,
        "    def noise(self, batch, generator):\n        return None",
    ),
    "method, prepare returns None": (METHOD, "    def prepare(self, batch):\n        return None"),
    "method, next_buffers names none": (
        METHOD,
        "    def next_buffers(self, out):\n        return {'nothing': out.risks}",
    ),
    "method, objective returns None": (METHOD, "    def objective(self, out):\n        pass"),
    "method, objective returns a vector": (
        METHOD,
        "    def objective(self, out):\n        return out.risks",
    ),
    "method, objective returns a constant": (
        METHOD,
        "    def objective(self, out):\n        return torch.ones(())",
    ),
    "method, objective leaves the directory": (
        METHOD,
        "    def objective(self, out):\n        import os\n        os.chdir('/')\n"
        "        return out.risks.max()",
    ),
    "method, combine keeps the environments": (
        METHOD,
        "    def combine(self, gradients):\n        return gradients",
    ),
    "method, predict gives one number": (
        METHOD,
        "    def predict(self, x):\n        return x.sum()",
    ),
    "method, needs is no Needs": (METHOD, "    needs = {'index'}"),
    "own step, update returns None": (METHOD, "    def update(self, batch, step):\n        pass"),
    "own step, update returns no loss": (
        METHOD,
        "    def update(self, batch, step):\n        return {'other': torch.ones(())}",
    ),
    "own step, configure returns a list": (
        METHOD,
        "    def configure(self):\n        return [1]",
    ),
    "own step, reduction is a number": (
        METHOD,
        "    @property\n    def reduction(self):\n        return 3",
    ),
    **{
        f"dataset, {name} raises": (DATASET, f"    {line}\n        {RAISES}")
        for name, line in {
            "constructor": "def __init__(self, options, data_dir=None):",
            "load": "def load(self, trial):",
            "transform": "def transform(self, x, generator):",
            "fit": "def fit(self, training):",
            "label": "@property\n    def label(self):",
        }.items()
    },
    "dataset, load gives None": (DATASET, "    def load(self, trial):\n        pass"),
    "dataset, load gives tensors": (
        DATASET,
        "    def load(self, trial):\n        return {n: torch.ones(2) for n in 'abc'}",
    ),
    "dataset, load gives a list": (DATASET, "    def load(self, trial):\n        return [*'abc']"),
    "dataset, load gives lists": (
        DATASET,
        "    def load(self, trial):\n        return {n: Environment([1], [1]) for n in 'abc'}",
    ),
    "dataset, load changes the default type": (
        DATASET,
        "    def load(self, trial):\n        torch.set_default_dtype(torch.float64)\n"
        "        x = torch.ones(8, 2)\n"
        "        return {n: Environment(x, x[:, 0]) for n in 'abc'}",
    ),
    "dataset, transform gives other shapes": (
        DATASET,
        "    def transform(self, x, generator):\n        return x[:, 0]",
    ),
    "dataset, transform gives None": (
        DATASET,
        "    def transform(self, x, generator):\n        pass",
    ),
    "dataset, fit gives None": (DATASET, "    def fit(self, training):\n        pass"),
    "dataset, no environments": (DATASET, "    environments = None"),
    "dataset, a task that is a word": (DATASET, "    task = 'binary'"),
    "rule, evidence raises": (RULE, f"    def evidence(self, runs):\n        {RAISES}"),
    "rule, evidence gives None": (RULE, "    def evidence(self, runs):\n        pass"),
    "rule, evidence lacks columns": (
        RULE,
        "    def evidence(self, runs):\n        return runs[['id']]",
    ),
    "rule, evidence asks for what runs have not": (
        RULE,
        "    def evidence(self, runs):\n        return runs.state",
    ),
    "rule, is_usual raises": (
        RULE,
        f"    @classmethod\n    def is_usual(cls, runs):\n        {RAISES}",
    ),
    "rule, no summary": (RULE, "    summary = needs = None"),
    "metric, of_examples raises": (
        METRIC,
        f"    def of_examples(self, examples):\n        {RAISES}",
    ),
    "metric, of_examples gives a number": (
        METRIC,
        "    def of_examples(self, examples):\n        return 0.5",
    ),
    "metric, of_examples gives one value": (
        METRIC,
        "    def of_examples(self, examples):\n        return examples.losses.mean()",
    ),
    "metric, of_predictions raises": (
        METRIC,
        f"    def of_predictions(self, p):\n        {RAISES}",
    ),
    "metric, of_predictions gives text": (
        METRIC,
        "    def of_predictions(self, p):\n        return 'good'",
    ),
    **{
        f"launcher, {name} raises": (LAUNCHER, f"    {line}\n        {RAISES}")
        for name, line in {
            "constructor": "def __init__(self):",
            "warm_up": "def warm_up(self):",
            "check": "def check(self, job):",
            "launch": "def launch(self, job):",
            "states": "def states(self, results, ids):",
        }.items()
    },
    "launcher, launch gives None": (LAUNCHER, "    def launch(self, job):\n        pass"),
    "launcher, states gives None": (LAUNCHER, "    def states(self, results, ids):\n        pass"),
    "launcher, Resources is a mapping": (LAUNCHER, "    Resources = {}"),
    "network, constructor raises": (
        NETWORK,
        f"    def __init__(self, input_shape, num_outputs, hparams):\n        {RAISES}",
    ),
    "network, resolved raises": (
        NETWORK,
        f"    @classmethod\n    def resolved(cls, values, dataset):\n        {RAISES}",
    ),
    "network, no parts": (
        NETWORK,
        "    def __init__(self, input_shape, num_outputs, hparams):\n        super().__init__()",
    ),
    "network, the classifier's shape": (
        NETWORK,
        "    def __init__(self, input_shape, num_outputs, hparams):\n"
        "        super().__init__()\n"
        "        self.hparams, self.num_features = hparams, 3\n"
        "        self.featurizer, self.classifier = nn.Linear(2, 3), nn.Linear(2, 3)",
    ),
}
"""Plug-ins by what is bad about them: the text of a module and what is put into its class."""


def module(name: str) -> str:
    """The text of the module of a bad plug-in."""
    template, body = BAD[name]
    return template.format(base="CustomStep" if name.startswith("own") else "Algorithm", body=body)
