"""A metric of a user's own is one class in one file, recorded or computed from predictions."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from oodbench.errors import UserError
from oodbench.metrics import checked, metrics, values_of_examples
from oodbench.results.read import joined
from oodbench.selection.judge import choose
from oodbench.tasks import Task
from tests.helpers.algorithms.plugins import plugins_in
from tests.helpers.commands import installed, python, type_in
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import edited, tiny_file

pytestmark = pytest.mark.slow

PLUGIN = '''
from oodbench.metrics import PredictionMetric, RecordedMetric, register


@register("confidence")
class Confidence(RecordedMetric):
    """The probability of the predicted class."""

    higher_is_better = is_proportion = True

    def of_examples(self, examples):
        return examples.logits.squeeze(-1).abs().sigmoid()


@register("group_gap")
class GroupGap(RecordedMetric):
    """The distance between the highest and the lowest accuracy on a group."""

    def of_groups(self, groups, right):
        rates = [hits / count for hits, count in zip(right, groups.counts) if count]
        return max(rates) - min(rates)


@register("mean_output")
class MeanOutput(PredictionMetric):
    """The mean of all logits."""

    higher_is_better = True

    def of_predictions(self, p):
        return float(p.logits.mean())
'''
OWN = ["--plugin", "my_metrics"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in, and the results of a sweep that is trained with it."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "my_metrics.py").write_text(PLUGIN)
    changes = {"datasets": ["ColoredDigits"], "algorithms": ["ERM"], "trials": 1}
    file = str(tiny_file(folder, **changes, steps=10, evaluate_every=5))
    options = ["--launcher", "debug", "--keep-predictions", "--yes", "--out", str(folder / "out")]
    with plugins_in(folder, "my_metrics"):
        type_in("sweep", "launch", file, *options, *OWN, code=0)
    return folder


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the results, beside the plug-in, which is forgotten afterwards."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    with plugins_in(tmp_path, "my_metrics"):
        yield tmp_path / "out"


@pytest.mark.nightly
def test_a_plugins_metrics_are_recorded_shown_and_judge(out: Path) -> None:
    for metric, rises in (("confidence", True), ("group_gap", False), ("mean_output", True)):
        shown = type_in("report", "table", out, "--metric", metric, "--notes", *OWN, code=0)
        direction = f"{metric}: {'higher' if rises else 'lower'} is better"
        assert direction in " ".join(shown.stdout.split())
    frames = joined([out])
    records = frames.records.astype({"metric": object, "environment": object, "split": object})
    for metric, best in (("confidence", "max"), ("group_gap", "min")):
        chosen = choose(frames, f"train_val:{metric}")
        own = records.query(f"metric == '{metric}' and split == 'out' and environment != '0.9'")
        assert chosen["score"].tolist() == [own.groupby("step")["value"].mean().agg(best)]


ASKED = (("table", "--metric"), ("table", "--rule"), ("compare", "--metric"))


WRONG = '''

@register("late")
class Late(RecordedMetric):
    """A metric that was registered after the runs had been trained."""

    def of_examples(self, examples):
        return examples.losses.mean()


@register("pairs")
class Pairs(PredictionMetric):
    """No number."""

    def of_predictions(self, p):
        return p.logits[:2, 0]


@register("percents")
class Percents(PredictionMetric):
    """A share in percents."""

    is_proportion = True

    def of_predictions(self, p):
        return 300.0


@register("fails")
class Fails(PredictionMetric):
    """Takes arrays for tensors."""

    def of_predictions(self, p):
        return p.logits.softmax(-1).mean()
'''


def test_a_metric_of_a_wrong_form_is_refused(out: Path) -> None:
    Path("my_metrics.py").write_text(PLUGIN + WRONG)
    for metric, words in (
        ("pairs", "`of_predictions` of the metric pairs must return a number, not "),
        ("percents", "percents is 300, and its `is_proportion` says that it is in [0, 1]"),
        ("fails", "the metric fails: AttributeError: 'numpy.ndarray' object has no attribute"),
        ("late", "did not record the metric late, and ended runs are not trained again"),
        ("mse", "unknown metric 'mse' in ColoredDigits; known: "),
        ("train_val", "unknown metric 'train_val' in ColoredDigits; known: "),
        ("train_val", "(train_val is a selection rule, for --rule)"),
    ):
        told = type_in("report", "table", out, "--also", metric, *OWN, code=2)
        assert words in " ".join(told.stderr.split())
    task, targets = Task("binary"), torch.zeros(3)
    with pytest.raises(UserError, match=r"metric late must return a value for each .*shape \(3,\)"):
        values_of_examples(task, targets[:, None], targets)


def test_a_recorded_proportion_is_at_most_1() -> None:
    with pytest.raises(UserError, match=r"accuracy is 50, and its `is_proportion` says .*\[0, 1\]"):
        checked("accuracy", 50.0)
    with pytest.raises(UserError, match=r"accuracy is -0\.5, and its"):
        checked("accuracy", -0.5)
    assert checked("loss", 50.0) == 50.0
    for rounded in (-1e-9, 1 + 1e-9):
        assert checked("accuracy", rounded) == rounded


def forget() -> None:
    """Have the process know nothing of the plug-in's metrics."""
    for name in ("confidence", "group_gap", "mean_output"):
        metrics._classes.pop(name, None)
    sys.modules.pop("my_metrics", None)


@pytest.mark.parametrize(("command", "flag"), ASKED)
def test_the_direction_of_a_metric_is_that_of_its_plugin_and_never_guessed(
    out: Path, command: str, flag: str
) -> None:
    forget()
    type_in("report", "table", out, "--metric", "loss", code=0)
    assert "my_metrics" not in sys.modules  # nobody needs it
    name = "train_val:confidence" if flag == "--rule" else "confidence"
    notes = ("--notes",) if command == "table" else ("--format", "markdown")
    shown = type_in("report", command, out, flag, name, *notes, *OWN, code=0)
    assert metrics.find("confidence") is not None
    if flag == "--metric":
        assert "confidence: higher is better" in " ".join(shown.stdout.split())
        assert "confidence (%)" in shown.stdout or command == "compare"
    forget()
    Path("my_metrics.py").unlink()
    lost = type_in("report", command, out, flag, name, code=2)
    assert "--plugin my_metrics, in Python" in lost.stderr
    with edited(out / "sweep.json") as plan:
        plan["settings"]["plugins"] = []
    refused = type_in("report", command, out, flag, name, code=2)
    assert "--plugin MODULE" in refused.stderr
    assert "unknown direction of the metric 'confidence'" in refused.stderr


def test_an_entry_point_registers_metrics_and_directions_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "my_metrics.py").write_text(PLUGIN)
    installed(tmp_path, "metrics", "my_metrics")
    code = (
        "import sys; from oodbench.metrics import is_higher_better as up, is_proportion\n"
        "assert up('confidence') and is_proportion('confidence') and not up('group_gap')\n"
        "assert up('accuracy[0, red]') and not up('loss') and not up('distance_to_truth')\n"
        "assert 'torch' not in sys.modules"
    )
    done = python(Path("/"), "-c", code, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 0, done.stderr
