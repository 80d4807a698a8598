"""Plug-ins that raise or return nonsense in one hook each, as the texts of modules."""

import re
import textwrap

TEXT = """
import torch
{imports}


@register({names})
class Bad({base}):
    \"\"\"A bad one.\"\"\"

{body}
"""
METHOD = ("from oodbench.algorithms import Algorithm, register", "'Bad', paper='none'", "Algorithm")
METRIC = "from oodbench.metrics import PredictionMetric, RecordedMetric, register"
KINDS = {
    "method": METHOD,
    "own step": METHOD,
    "dataset": (
        "from oodbench.datasets import Environment, register\n"
        "from oodbench.datasets.linear_sem import LinearSEM",
        *("'Bad'", "LinearSEM"),
    ),
    "rule": ("from oodbench.selection import TrainVal, register", "'bad'", "TrainVal"),
    "metric": (METRIC, "'bad'", "RecordedMetric"),
    "launcher": (
        "from oodbench.sweep.launchers import register\n"
        "from oodbench.sweep.launchers.local import Debug",
        *("'bad'", "Debug"),
    ),
    "network": (
        "from oodbench.networks.base import register\nfrom oodbench.networks.mlp import MLP",
        *("'Bad'", "MLP"),
    ),
}
"""What a module imports, how its class is registered, and its base, by the kind of the class."""
PREDICT = "def predict(self, x):\n    return self.network(x)\n\n"
"""A hook that every method has, as a class without one is none."""
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
    "    return dict.fromkeys(self.environments, Environment([1], [1]))",
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
    "network, no parts": f"{NETWORK_INIT}\n    super(MLP, self).__init__()",
}
"""What is put into the class of a plug-in, by its kind and what is bad about it."""


def module(name: str) -> str:
    """The text of the module of a bad plug-in."""
    imports, names, base = KINDS[name.partition(",")[0]]
    base = "PredictionMetric" if "of_predictions" in name else base
    body = textwrap.indent((PREDICT if base == "Algorithm" else "") + BAD[name], "    ")
    return TEXT.format(imports=imports, names=names, base=base, body=body)
