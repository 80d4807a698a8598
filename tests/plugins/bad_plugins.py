"""Plug-ins that raise or return nonsense in one hook each, as the texts of modules."""

import re
import textwrap

METHOD = '''
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, register


@register("Bad", paper="none")
class Bad(Algorithm):
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

from oodbench.metrics import {base}, register


@register("bad")
class Bad({base}):
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
TEMPLATES = {
    "method": METHOD,
    "own step": METHOD,
    "dataset": DATASET,
    "rule": RULE,
    "metric": METRIC,
    "launcher": LAUNCHER,
    "network": NETWORK,
}
"""The text of a module by the kind of its class."""
NETWORK_INIT = "def __init__(self, input_shape, num_outputs, hparams):"


def raising(kind: str, *hooks: str) -> dict[str, str]:
    """What is put into a class so that one of these hooks raises, by what is bad about it."""
    names = [re.findall(r"def (\w+)", hook)[0] for hook in hooks]
    bodies = [f"{hook}\n    raise KeyError('on purpose')" for hook in hooks]
    return {f"{kind}, {name} raises": body for name, body in zip(names, bodies, strict=True)}


BAD: dict[str, str] = {
    **raising(
        "method",
        "@classmethod\ndef skip(cls, problem):",
        "def __init__(self, network, problem, hparams):",
        "def noise(self, batch, generator):",
        "def prepare(self, batch):",
        "def next_buffers(self, out):",
        "def objective(self, out):",
        "def combine(self, gradients):",
        "def predict(self, x):",
    ),
    **raising(
        "own step",
        "def update(self, batch, step):",
        "def configure(self):",
        "def schedule(self, step, rates):",
        "def environments_at(self, step):",
    ),
    "method, skip returns a number": "@classmethod\ndef skip(cls, problem):\n    return 3",
    "method, objective returns None": "def objective(self, out):\n    pass",
    "method, objective leaves the directory": "def objective(self, out):\n"
    "    import os\n"
    "    os.chdir('/')\n"
    "    return out.risks.max()",
    "method, predict gives one number": "def predict(self, x):\n    return x.sum()",
    "own step, update returns None": "def update(self, batch, step):\n    pass",
    "own step, configure returns a list": "def configure(self):\n    return [1]",
    **raising(
        "dataset",
        "def __init__(self, options, data_dir=None):",
        "def load(self, trial):",
        "def transform(self, x, generator):",
        "def fit(self, training):",
        "@property\ndef label(self):",
    ),
    "dataset, load gives None": "def load(self, trial):\n    pass",
    "dataset, load gives lists": "def load(self, trial):\n"
    "    return {n: Environment([1], [1]) for n in 'abc'}",
    "dataset, transform gives other shapes": "def transform(self, x, generator):\n"
    "    return x[:, 0]",
    "dataset, fit gives None": "def fit(self, training):\n    pass",
    **raising("rule", "def evidence(self, runs):"),
    "rule, evidence gives None": "def evidence(self, runs):\n    pass",
    "rule, evidence lacks columns": "def evidence(self, runs):\n    return runs[['id']]",
    "rule, evidence asks for what runs have not": "def evidence(self, runs):\n"
    "    return runs.state",
    **raising("rule", "@classmethod\ndef is_usual(cls, runs):"),
    **raising("metric", "def of_examples(self, examples):"),
    "metric, of_examples gives a number": "def of_examples(self, examples):\n    return 0.5",
    **raising("metric", "def of_predictions(self, p):"),
    **raising(
        "launcher",
        "def __init__(self):",
        "def warm_up(self):",
        "def check(self, job):",
        "def launch(self, job):",
        "def states(self, results, ids):",
    ),
    "launcher, launch gives None": "def launch(self, job):\n    pass",
    **raising("network", NETWORK_INIT, "@classmethod\ndef resolved(cls, values, dataset):"),
    "network, no parts": f"{NETWORK_INIT}\n    super().__init__()",
}
"""What is put into the class of a plug-in, by its kind and what is bad about it."""


def module(name: str) -> str:
    """The text of the module of a bad plug-in."""
    base = "PredictionMetric" if "of_predictions" in name else "RecordedMetric"
    kind = name.partition(",")[0]
    return TEMPLATES[kind].format(base=base, body=textwrap.indent(BAD[name], "    "))
