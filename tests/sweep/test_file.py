"""What a sweep file may hold, and what is said of the rest."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from oodbench.errors import UserError
from oodbench.sweep.file import find_sweep, read_sweep, validate
from oodbench.sweep.plan import make_plan
from tests.helpers.sweeps import TINY, tiny, tiny_file


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trials", True),
        ("trials", 2.0),
        ("holdout", float("nan")),
        ("shared_quantiles", 1),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^here: {key} must be .*, not "):
        validate(TINY | {key: value}, "here")


@pytest.mark.parametrize(
    "name", ["../../../x", "/abs", "a/../../b", ".", "..", "", " ", "a//b", "a\nb", "\x1b[31m"]
)
def test_a_name_stays_inside_the_results_folder(name: str) -> None:
    with pytest.raises(UserError, match="name must be"):
        validate(TINY | {"name": name}, "here")


def test_all_mistakes_of_a_file_are_told_at_once_in_our_words() -> None:
    rows = ["ERM", 3, {"name": "IRM", "hparms": {}}, {"label": "x"}]
    wrong = {"algorithms": rows, "trials": True, "stepz": 3}
    with pytest.raises(UserError) as caught:
        validate({k: v for k, v in TINY.items() if k != "datasets"} | wrong, "here")
    assert str(caught.value) == (
        "here has 6 problems:\n"
        "- datasets is missing\n"
        "- algorithms.1 must be a name or a mapping, not 3\n"
        "- unknown key 'hparms' in algorithms.2; did you mean hparams?\n"
        "- algorithms.3.name is missing\n"
        "- trials must be a number from 1 on, or a list of different numbers from 0 on, not True\n"
        "- unknown key 'stepz'; did you mean steps?"
    )


def test_names_of_plugins_are_known_beside_values_of_another_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from oodbench.algorithms import algorithms, register\n"
    code += "register('OfAPlugin', paper='none')(type('OfAPlugin', (algorithms.get('ERM'),), {}))\n"
    (tmp_path / "of_a_plugin.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    values = TINY | {"algorithms": ["OfAPlugin"], "trials": True}
    for plugins, given in ((["of_a_plugin"], ()), ([], ["of_a_plugin"])):
        with pytest.raises(UserError, match=r"^here: trials must be [^-]*, not True$"):
            validate(values | {"plugins": plugins}, "here", given)


def test_a_setting_reaches_into_lists_and_mappings(tmp_path: Path) -> None:
    settings = [
        "algorithms.0.hparams.lr=3",
        "datasets.0.num_examples=30",
        "network.hparams.width=4",
    ]
    sweep = read_sweep(tiny_file(tmp_path, network="MLP"), settings)
    first = sweep.algorithms[0]
    assert not isinstance(first, str)
    assert (first.name, first.hparams) == ("ERM", {"lr": 3})
    assert sweep.datasets == [{"name": "LinearSEM", "num_examples": 30}]
    assert not isinstance(sweep.network, str)
    assert (sweep.network.name, sweep.network.hparams) == ("MLP", {"width": 4})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algorithms.7=ERM", "algorithms has the places 0 to 1, not '7'"),
        ("algorithms.0.hparms.lr=3", "did you mean hparams"),
    ],
)
def test_a_setting_that_leads_nowhere_is_named(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_sweep(tiny_file(tmp_path), [setting])


def test_equal_test_sets_are_one_run_in_the_order_of_the_dataset() -> None:
    assert (
        tiny(test_environments=[["2", "0.2"]]).runs == tiny(test_environments=[["0.2", "2"]]).runs
    )
    with pytest.raises(UserError, match=r"test_environments lists 0\.2 and 2 more than once"):
        tiny(test_environments=[["2", "0.2"], ["0.2", "2"]])


@pytest.mark.parametrize("trials", [10**9, [*range(1000)]])
def test_more_runs_than_anybody_can_train_are_refused_at_once(trials: Any) -> None:
    with pytest.raises(UserError, match="has at most 200,000"):
        tiny(trials=trials, hparam_draws=1000)
    own = TINY["datasets"][0] | {"training": {"trials": trials}}
    with pytest.raises(UserError, match="has at most 200,000"):
        tiny(datasets=[own], trials=1, hparam_draws=1000)


SPIRALS = "datasets: [{name: Spirals, "


@pytest.mark.parametrize(
    ("key", "line"),
    [
        *(
            ("trials", f"trials: {value}")
            for value in (10**9, 2**63, 2**62, ".inf", "true", "1e400")
        ),
        *(("steps", f"steps: {value}") for value in (2**63, ".nan", "-.inf", "[1]", "1.5")),
        *(("holdout", f"holdout: {value}") for value in (".nan", ".inf", "false", 2**63)),
        ("hparam_draws", f"hparam_draws: {2**62}"),
        ("datasets", SPIRALS + "shortcut_scale: .nan}]"),
        ("datasets", SPIRALS + f"num_examples: {2**62}" + "}]"),
        ("datasets", SPIRALS + f"num_examples: {2**45}" + "}]"),
        ("algorithms", f"algorithms: [{'y' * 5000}]"),
        ("name", 'name: "a\\0b"'),
    ],
)
def test_an_odd_value_costs_one_short_sentence(tmp_path: Path, key: str, line: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(yaml.safe_dump({k: v for k, v in TINY.items() if k != key}) + line)
    with pytest.raises(UserError) as told:
        make_plan(read_sweep(file))
    assert "\n" not in str(told.value)
    assert len(str(told.value).replace(str(tmp_path), "")) <= 300


def test_the_holdout_is_that_of_the_dataset_its_training_or_the_sweep() -> None:
    values = {"name": "four", "datasets": ["FourPoints"], "algorithms": ["ERM"], "trials": 1}
    (run,) = make_plan(validate(values, "here")).runs.values()
    assert run.holdout == 0
    with pytest.raises(UserError, match="no example to train on"):
        make_plan(validate(values | {"holdout": 0.2}, "here"))
    values["datasets"] = ["Spirals", {"name": "LinearSEM", "training": {"holdout": "4e-1"}}]
    runs = make_plan(validate(values | {"holdout": 0.1}, "here")).runs.values()
    assert {run.dataset: run.holdout for run in runs} == {"Spirals": 0.1, "LinearSEM": 0.4}


def test_missing_files_and_wrong_yaml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep file"):
        find_sweep(str(tmp_path / "no.yaml"))
    with pytest.raises(UserError, match=r"unknown sweep 'quikstart'.*did you mean quickstart"):
        find_sweep("quikstart")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")
    with pytest.raises(UserError, match=r"broken\.yaml is not YAML"):
        read_sweep(broken)
    broken.write_text("just words")
    with pytest.raises(UserError, match="keys and values"):
        read_sweep(broken)
