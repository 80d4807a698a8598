"""A sweep from Python: `oodbench.sweep` and what it returns, and `oodbench.run`."""

import inspect
import os
import pydoc
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from nbclient import NotebookClient
from torch import Tensor

import oodbench
from oodbench import algorithms, datasets
from oodbench.algorithms import Algorithm, Outputs
from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.sweep.file import Keys, Sweep, read_sweep
from oodbench.sweep.plan import make_plan
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.helpers.commands import python, type_in
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import ODD_METHODS, tiny

SEM = {"name": "LinearSEM", "num_examples": 40}
KEYS: dict[str, Any] = {"trials": 2, "steps": 20, "evaluate_every": 10, "launcher": "debug"}


def frame(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sites = np.repeat(["Leiden", "Utrecht", "Delft"], 30)
    values = {"age": rng.normal(size=90), "dose": rng.normal(size=90)}
    return pd.DataFrame({**values, "y": rng.choice(["no", "yes"], 90), "site": sites, **columns})


COHORT = {"data": frame(), "target": "y", "environment": "site"}


def test_its_arguments_are_the_keys_of_a_file() -> None:
    """But for the protocol of a file, which fixes what is given here."""
    own = {"name", "plugins", "datasets", "algorithms", "trials", "keep_weights"}
    assert own | Keys.__annotations__.keys() | {"protocol"} == Sweep.model_fields.keys()
    plain: Any = vars(pydoc)["plaintext"]
    shown = pydoc.render_doc(sys.modules["oodbench.sweep"], renderer=plain)
    for function in (oodbench.sweep, oodbench.run):
        parameters = inspect.signature(function).parameters
        assert parameters["holdout"].default == 0.2 and Keys.__annotations__.keys() < {*parameters}
    for key in Keys.__annotations__:
        assert f"    {key}: {Sweep.model_fields[key].description}\n" in shown


def test_it_is_the_sweep_of_a_file_and_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    results = oodbench.sweep([SEM], ["ERM", "IRM"], out=out, keep_weights=["last"], **KEYS)
    keys = {"name": "mine", "datasets": [SEM], "algorithms": ["ERM", "IRM"], **KEYS}
    del keys["launcher"]
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(keys))
    assert list(results.plan().index) == list(make_plan(read_sweep(file)).runs)
    assert set(results.plan()["state"]) == {"done"} and len(results.runs) == 4
    assert results.records.equals(oodbench.load(out))
    again = oodbench.sweep([SEM], ["ERM", "IRM"], out=out, **KEYS)
    assert again.records.equals(results.records)
    assert results.model("IRM", trial=1, rule="last").spec.trial == 1


def test_results_are_what_reports_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    oodbench.sweep([SEM], ["ERM", "IRM"], out=tmp_path / "mine", **KEYS)
    results = oodbench.Results(tmp_path / "mine")

    def printed(command: str, *options: str) -> list[str]:
        return type_in("report", command, tmp_path / "mine", *options, code=0).stdout.split()

    table, label = results.table(), results.plan()["dataset"].iloc[0]
    assert str(table).split() == printed("table", "--notes")
    assert results.compare().to_csv(index=False).split() == printed("compare", "--format", "csv")
    assert str(results.why("IRM")).split() == printed("why", "--algorithm", "IRM")
    assert isinstance(table, pd.DataFrame) and set(table["label"]) == {"ERM", "IRM", "constant"}
    assert "<table" in table._repr_html_() and "Selection train_val" in table._repr_html_()
    assert type(table.query("label == 'ERM'")) is pd.DataFrame
    one = results.table(rows="ERM", datasets=label, also="mse")
    assert str(one) == str(results.table(rows=["ERM"], datasets=[label], also=["mse"]))
    with pytest.raises(UserError, match="unknown algorithm 'IRN'; did you mean IRM"):
        results.why("IRN")
    wrong: dict[str, Any] = {"dataset": "LinearSEM"}
    with pytest.raises(UserError, match=r"argument 'dataset' in oodbench\.Results\.table; did"):
        results.table(**wrong)
    records = results.records
    with warnings.catch_warnings(action="error"):
        of_erm = records[records["label"] == "ERM"]
        by_row = of_erm.pivot_table("value", ["label", "environment"], "metric")
    assert {row for row, _ in by_row.index} == {"ERM"} and {*map(type, of_erm["label"])} == {str}


def test_boards_are_opened_by_their_names_and_others_are_told(tmp_path: Path) -> None:
    board = oodbench.Results("small.v3")
    assert "VREx" in set(board.table(datasets=["SEM, FOU"], rows=["VREx"])["label"])
    with pytest.raises(UserError, match="is not one results directory"):
        board.model()
    file = tmp_path / "file"
    file.touch()
    for there, words in (("smal.v3", r"there is no folder /.*/smal\.v3"), (file, "is a file")):
        with pytest.raises(UserError, match=f"unknown board or results directory .*{words}"):
            oodbench.Results(there)


def test_a_data_frame_is_a_table_whose_content_is_in_the_ids(tmp_path: Path) -> None:
    entry = COHORT | {"label": "cohort"}
    results = oodbench.sweep([entry], ["ERM"], out=tmp_path / "mine", **KEYS)
    file = tmp_path / "mine" / "data" / "cohort.parquet"
    assert pd.read_parquet(file).equals(frame())
    as_file = {"name": "Table", "file": str(file), "target": "y", "environment": "site"}
    same = oodbench.sweep([as_file | {"label": "cohort"}], ["ERM"], out=tmp_path / "other", **KEYS)
    ids = [*results.plan().index]
    oodbench.sweep([entry | {"label": 300 * "é"}], ["ERM"], out=tmp_path / "long", **KEYS)
    assert [*same.plan().index] == ids
    entry["data"] = frame(age=1.0)
    with pytest.raises(UserError, match="The data of cohort have changed"):
        oodbench.sweep([entry], ["ERM"], out=tmp_path / "mine", **KEYS)
    edited = oodbench.sweep([entry], ["ERM"], out=tmp_path / "mine", **KEYS, stale="retrain")
    assert not {*edited.plan().index} & {*ids}
    records = oodbench.run(entry, out=tmp_path / "one", steps=4)
    assert set(records["dataset"].astype(str)) == {"cohort"}


def test_spans_of_pandas_are_categories(tmp_path: Path) -> None:
    data = frame().assign(
        band=lambda d: pd.cut(d["age"], [-9, 0, 9]),
        month=pd.period_range("2020-01", periods=3, freq="M").repeat(30),
    )
    entry = {"target": "y", "environment": "month", "features": ["age", "band"]}
    oodbench.sweep([{"data": data, **entry}], ["ERM"], out=tmp_path / "mine", **KEYS)
    file = {"file": "data.parquet", **entry}
    made: Any = datasets.make("Table", file, tmp_path / "mine" / "data")
    assert made.columns.categories == {"band": ("(-9, 0]", "(0, 9]")}
    assert made.environments == ("2020-01", "2020-02", "2020-03")


def test_classes_and_datasets_stand_where_names_do(tmp_path: Path) -> None:
    keys = {**KEYS, "launcher": "local", "workers": 1}
    row = {"name": Doubled, "label": "twice"}
    made = datasets.make("LinearSEM", {"num_examples": 40})
    results = oodbench.sweep([made], [Doubled, row, "ERM"], out=tmp_path / "mine", **keys)
    assert set(results.plan()["state"]) == {"done"}
    assert set(results.plan()["label"]) == {"Doubled", "twice", "ERM"}
    named = oodbench.sweep([SEM], ["Doubled", "ERM"], out=tmp_path / "other", **keys)
    assert {*named.plan().index} <= {*results.plan().index}


@algorithms.register("Doubled", paper="none")
class Doubled(Algorithm):
    """Twice the risk."""

    def objective(self, out: Outputs) -> Tensor:
        return 2 * out.risks.mean()


class Nameless(Algorithm):
    """A method that is not registered."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean()


class Unnamed(datasets.Dataset):
    """A dataset that is not registered."""

    def load(self, trial: int) -> dict[str, datasets.Environment]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stepz": 3}, r"unknown argument 'stepz' in oodbench\.sweep; did you mean steps"),
        ({"steps": "many"}, r"oodbench\.sweep: steps must be default or a whole number"),
        ({"algorithms": [Path]}, "Path.* is not an algorithm: it is not derived from oodbench"),
        ({"algorithms": [lambda out: out]}, "a class or a name is needed, not an object"),
        ({"algorithms": [Nameless]}, r"no name yet: .*`@register\('Nameless', paper=\"none\"\)`"),
        ({"datasets": [Unnamed]}, r"oodbench.datasets import register`.*`@register\('Unnamed'\)`"),
        ({"datasets": [{"frame": frame()}]}, "a data frame is the value of `data`, not of `frame`"),
        ({"datasets": [{"data": 3}]}, "`data` is a pandas data frame, not int"),
        ({"datasets": [{"data": frame(), "target": "y"}]}, "unknown column 'environment' in"),
        ({"datasets": 2 * [COHORT]}, "two datasets are called 'data': .*give them a `label` each"),
        ({"datasets": [frame()]}, r"is given as \{.*\}, which name columns: age, dose, y, site"),
        ({"datasets": [{"data": frame(id=["A17", 17] * 45)}]}, r"column id .*`\.astype\(str\)`"),
        ({"stale": "yes"}, "`stale` is retrain or keep, not 'yes'"),
        ({"observers": "wanddb"}, "unknown observer 'wanddb'; did you mean wandb"),
        ({"workers": 0}, "`workers` must be a whole number from 1"),
        ({"out": None}, "`out` must be a results directory"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    keys: dict[str, Any] = {"datasets": [SEM], "algorithms": ["ERM"], "out": tmp_path / "mine"}
    with pytest.raises(UserError, match=words):
        oodbench.sweep(**keys | KEYS | changes)


def test_a_foreign_folder_gets_no_file(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty and holds no sweep"):
        oodbench.sweep([COHORT], ["ERM"], out=tmp_path, **KEYS)
    with pytest.raises(UserError, match="is a file"):
        oodbench.sweep([COHORT], ["ERM"], out=tmp_path / "thesis.tex", **KEYS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"steps": np.int64(20), "holdout": np.float64(0.2)}
    keys = {**KEYS, **numbers, "trials": np.arange(2)}
    records = oodbench.run(SEM, "ERM", evaluate_every=10, **numbers)
    sweep = oodbench.sweep([SEM], ["ERM"], out=tmp_path / "mine", **keys)
    assert {*records["id"]} < {*sweep.plan().index} and len(sweep.plan()) == 2


def test_the_process_is_afterwards_as_it_was(tmp_path: Path) -> None:
    oodbench.sweep([SEM], ["ERM"], out=tmp_path / "first", **KEYS)  # imports what it needs

    def state() -> list[Any]:
        generators = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]
        settings = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
        process = [*sys.path], Path.cwd(), dict(os.environ), sys.modules["__main__"]
        return [generators, random.getstate(), settings, process, [*warnings.filters]]

    before = state()
    keys = {**KEYS, "launcher": "local", "workers": 1}
    oodbench.sweep([SEM], [Doubled], out=tmp_path / "second", **keys)
    assert state() == before


def script(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(text)
    done = python(folder, "script.py")
    assert done.returncode == 0, done.stderr
    return done.stdout


SCRIPT = """
from dataclasses import dataclass
from torch import Tensor
import oodbench
from oodbench.algorithms import Algorithm, Outputs
from oodbench.hparams import hparam

FACTOR = 2.0
out = object()  # no global that the class uses


if __name__ == "__main__":
    def scaled(out: Outputs) -> Tensor:
        # a comment, which no copy has

        return FACTOR * out.risks.mean()


class Base(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        weight: float = hparam(1.0)


class Mine(Base):
    def objective(self, out: Outputs) -> Tensor:
        return self.hparams.weight * scaled(out)


def launched(**changes):
    keys = {"algorithms": ["ERM", Mine], "trials": 1, "steps": 20, "out": "out", "workers": 1}
    try:
        results = oodbench.sweep(["LinearSEM"], **keys | changes)
        print(Mine.__module__, *results.plan()["state"])
    except oodbench.errors.UserError as error:
        print(error)


launched()
launched(trials=2)
FACTOR = 3.0
launched()
launched(launcher="slurm")
FACTOR = Tensor([2.0])
launched()


class Failing(Base):
    def objective(self, out):
        if out.step > 1:

            raise ValueError("no")
        return out.risks.mean()


launched(algorithms=[Failing], out="failing")
"""


DATASETS = """
import torch
import oodbench
from oodbench.datasets import Dataset, Environment, register
from oodbench.tasks import Task


class Blobs(Dataset):
    environments, test_environments = ("a", "b", "c"), ("c",)
    input_shape, task = (2,), Task("binary")

    def load(self, trial):
        return {name: self.of(trial, name) for name in self.environments}

    def of(self, trial, name):
        x = torch.randn(60, *self.input_shape, generator=self.generator(trial, name))
        return Environment(x, (x.flatten(1)[:, 0] > 0).float())


class Pictures(Blobs):
    input_shape = (3, 8, 8)


@register("Named")
class Other(Blobs):
    input_shape = (3,)


keys = {"algorithms": ["ERM"], "trials": 1, "steps": 10, "out": "blobs", "workers": 1}
results = oodbench.sweep([Blobs, Pictures, {"name": Other, "label": "other"}], **keys)
print(*results.plan()["dataset"], *results.plan()["state"])
assert [*oodbench.sweep(["Blobs", Pictures], **keys).plan().index][:2] == [*results.plan().index][:2]
"""
KEPT = """
import numpy as np
import pandas as pd


def doubled(out: Outputs) -> Tensor:
    return 2 * out.risks.mean()


class Own(Algorithm):
    def objective(self, out: Outputs) -> Tensor:
        return doubled(out)


frame = pd.DataFrame({"age": np.arange(60.0), "y": ["no", "yes"] * 30, "site": np.arange(60) % 3})
data = {"data": frame, "target": "y", "environment": "site", "label": "cohort"}
keys = {"trials": 1, "steps": 4, "launcher": "debug", "keep_weights": ["last"]}
oodbench.sweep([data], [Own], **keys, out="results/nb")
"""
LATER = """
import oodbench
import pandas as pd

results = oodbench.Results("moved")
try:
    results.model(rule="last")
except oodbench.errors.UserError as error:
    print(error)
model = results.model(rule="last", plugins=True)
assert results.model(rule="last").spec == model.spec and "stale" not in str(results.table())
print(model.spec.options["file"], tuple(model(model.dataset.read(pd.DataFrame({"age": [3.0]}))).shape))
"""


@pytest.mark.slow
def test_a_script_may_define_its_classes_and_load_its_models_elsewhere(tmp_path: Path) -> None:
    """Workers do not run the script again, and the runs are stale when the class is another.

    A dataset that is not registered is called after its class, also where its base is one. A model's class
    runs only when asked for, and its data frame's file is where the results are now.
    """
    before, after = tmp_path / "before", tmp_path / "after"
    printed = script(before, SCRIPT + DATASETS + KEPT)
    assert "__main__ done done\n" in printed and "__main__ done done done done\n" in printed
    assert "Blobs Pictures other done done done\n" in printed
    assert printed.count("] done:") == 4 + 3 + 1
    line = SCRIPT.splitlines().index('            raise ValueError("no")') + 1
    for sentence in (
        "Mine has changed since 1 of its 1 runs were trained (saved_scaled.py)",
        "this script or notebook defines Mine, where the launcher slurm does not look",
        "scaled uses `FACTOR`, which is neither imported nor a plain constant",
        f"ValueError: no (script.py:{line}, in objective)",
    ):
        assert sentence in " ".join(printed.split()), printed
    after.mkdir()
    (before / "results" / "nb").rename(after / "moved")
    refused, told = script(after, LATER).splitlines()
    assert "unknown algorithm 'Own'" in refused
    assert refused.endswith("(`plugins=True` runs the code of the run's plug-ins, saved_Own)")
    assert told == "results/nb/data/cohort.parquet (1, 1)"


CLASS = """
@register("Mine", paper="none")
class Mine(Algorithm):
    def objective(self, out: Outputs) -> Tensor:
        return FACTOR * out.risks.mean()
"""
CELLS = (
    "%config InteractiveShell.ast_node_interactivity = 'last_expr'\n"
    "from torch import Tensor\nimport oodbench\n"
    "from oodbench.algorithms import Algorithm, Outputs, register\nFACTOR = 2",
    CLASS,
    "keys = dict(datasets=['LinearSEM'], trials=1, steps=20, out='out', workers=1)\n"
    "oodbench.sweep(algorithms=['ERM', Mine], **keys).table()",
    CLASS.replace("FACTOR", "3"),
    "oodbench.sweep(algorithms=['Mine'], **keys, stale='retrain').plan()",
)


@pytest.mark.slow
def test_a_notebook_defines_its_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    new: Any = nbformat.v4
    notebook = new.new_notebook(cells=[new.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    first, again = (notebook.cells[i].outputs for i in (2, 4))
    assert "<progress" in str(first) and "max='2' value='2'" in str(first)
    assert "<table" in first[-1]["data"]["text/html"]
    assert "LinearSEM: mse" in first[-1]["data"]["text/plain"]
    assert "they are trained again" in str(again) and "done" in again[-1]["data"]["text/plain"]


SHORT: dict[str, Any] = {"steps": 20, "evaluate_every": 10}


def test_it_is_the_run_of_a_sweep_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny(algorithms=["IRM"], trials=[1], **SHORT)
    results = Directory(tmp_path / "sweep")
    results.write_plan("tiny", {}, plan.rows)
    for spec in plan.runs.values():
        execute(spec, results.run(spec.id), TrainSettings())
    theirs = oodbench.load(results.path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    ours = oodbench.run(SEM, "IRM", trial=1, **SHORT)
    assert torch.get_rng_state().equal(before[0])
    assert (random.getstate(), torch.get_num_threads()) == before[1:]
    seconds = ["training_seconds", "waiting_seconds"]
    assert ours.drop(columns=seconds).equals(theirs.drop(columns=seconds))
    assert not list((tmp_path / "scratch").iterdir())


def test_a_directory_keeps_the_run_and_its_weights(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = oodbench.run(SEM, out=out, keep_weights=["last"], **SHORT)
    (run_id,) = first["id"].unique()
    end = (out / "runs" / run_id / "done.json").stat().st_mtime_ns
    assert oodbench.run(SEM, out=out, keep_weights=["last"], **SHORT).equals(first)
    assert (out / "runs" / run_id / "done.json").stat().st_mtime_ns == end
    assert oodbench.load_model(out, rule="last").step == 20
    oodbench.run(SEM, out=out, trial=5, **SHORT)
    assert sorted(oodbench.load(out)["trial"].unique()) == [0, 5]
    with pytest.raises(UserError, match="with steps 20, not 30; use another directory"):
        oodbench.run(SEM, out=out, **SHORT | {"steps": 30})


@pytest.mark.parametrize(
    ("arguments", "keys", "words"),
    [
        (("LinearSEM",), {"hparam_draws": 2}, "trains one run, and these keys make 2"),
        (("LinearSEM",), {"keep_weights": ["val_env"], "out": "x"}, "cannot be kept by val_env"),
        (("LinearSEM", "CutMix"), {}, "oodbench.run: "),
        (("LinearSEM",), {"keep_weights": ["last"]}, "a results directory, which `out` names"),
        (("LinearSEM",), {"precision": "tf32"}, "precision tf32 needs a CUDA device"),
    ],
)
def test_what_cannot_be_one_run_is_told(
    arguments: tuple[Any, ...], keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        oodbench.run(*arguments, **keys)


def test_a_run_that_fails_raises_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"the run is failed: (?s:.*)Traceback"):
        oodbench.run(SEM, "Raising", plugins=[ODD_METHODS], **SHORT)
