"""Rows enter a board: submitted, verified, added; a submission that lies is refused in one sentence."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pytest
import yaml

from oodbench.board.beside import board_frames
from oodbench.board.entries import ABOUT, read_receipt, sha256, statuses
from oodbench.board.files import dataset_file, find_board
from oodbench.board.page.contents import contents
from oodbench.board.page.markdown import markdown_page
from oodbench.board.parts import Part, write_parts
from oodbench.board.protocol import protocol_of
from oodbench.board.submission import unpack
from oodbench.board.verification import _sample
from oodbench.errors import UserError
from oodbench.files import temporary_name
from oodbench.selection import choose
from oodbench.sweep.plan import absent_data
from tests.helpers.boards import PROTOCOL, frozen_part, invoke, new_board
from tests.helpers.plugins import METHOD_FILE

SAYS = ("--author", "A. Author <a@example.org>", "--pretraining", "none")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in of a method."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "thrice.py").write_text(METHOD_FILE.format(name="Thrice", factor=3))
    return folder


@pytest.fixture(scope="module")
def protocol(place: Path) -> Path:
    """A board of one dataset and two draws with ERM alone."""
    small = {"datasets": PROTOCOL["datasets"][:1], "hparam_draws": 2, "trials": 3}
    board = new_board(place, "open.v1", **small)
    invoke("run", board, "--algorithm", "ERM", "--dataset", "SEM", "--out", place / "erm", *ONE)
    invoke("freeze", place / "erm", board)
    return board


ONE = ("--workers", 1)


@pytest.fixture(scope="module")
def archive(place: Path, protocol: Path) -> Path:
    """An honest submission."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        mine = ("--algorithm", "Thrice", "--plugin", "thrice", "--out", place / "mine", *ONE)
        invoke("run", protocol, *mine)
        out = place / "thrice.zip"
        text = invoke(
            *("submit", place / "mine", protocol, "--as", out, "--plugin", "thrice", *SAYS)
        )
    assert "thrice.zip has Thrice for open.v1" in " ".join(text.split())
    return out


@pytest.fixture
def board(protocol: Path, tmp_path: Path) -> Path:
    """A board that a test may change."""
    return Path(shutil.copytree(protocol, tmp_path / "open.v1"))


@pytest.fixture
def copy(archive: Path, tmp_path: Path) -> Path:
    """A submission that a test may change."""
    return Path(shutil.copy(archive, tmp_path))


def test_a_row_is_submitted_verified_and_added(copy: Path, board: Path) -> None:
    about = unpack(copy, board.parent / "unpacked").about
    assert (about.rows, about.board, about.paper) == (["Thrice"], "open.v1", "arXiv:0000.00000")
    text = " ".join(invoke("verify", copy, board, code=2).split())
    assert "verifying runs its method/thrice.py with your rights: read that file" in text
    text = invoke("verify", copy, board, "--run-code", "--sample", 4, "--by", "M.", "--workers", 1)
    assert "The code of a stranger runs now: method/thrice.py" in " ".join(text.split())
    assert "4 runs of" in text and "all are equal bit for bit" in " ".join(text.split())
    receipt = read_receipt(copy)
    assert receipt and (receipt.runs, receipt.verifier) == (4, "M.")
    assert "verified by rerun" in invoke("add", copy, board)
    assert statuses(board) == {"Thrice": "verified by rerun"}
    assert "is as it must be" in invoke("validate", board)
    shown = [line.split() for line in invoke("show", board).splitlines()]
    assert any(
        line[:1] == ["Thrice"] and line[-3:] == ["verified", "by", "rerun"] for line in shown
    )
    told = markdown_page(contents(str(board))).split("## Rows that others entered")[1]
    for text in ("A. Author <a@example.org>", "M., ", "4 runs", sha256_of_method(copy), "none"):
        assert text.replace("<", "\\<") in told
    assert "already" in invoke("add", copy, board, code=2)


def sha256_of_method(archive: Path) -> str:
    with ZipFile(archive) as packed:
        about = json.loads(packed.read(ABOUT))
    return str(about["files"]["method/thrice.py"][:12])


def test_a_row_without_a_receipt_is_submitted_and_a_foreign_receipt_is_none(
    copy: Path, board: Path
) -> None:
    receipt = copy.with_name("thrice.verified.json")
    values = {"runs": 20, "seed": 0, "verifier": "me", "day": "today", "code": "mine"}
    receipt.write_text(json.dumps(values | {"submission": "0" * 64}))
    assert "is of another file than" in " ".join(invoke("add", copy, board, code=2).split())
    receipt.unlink()
    assert "submitted" in invoke("add", copy, board)
    assert statuses(board) == {"Thrice": "submitted"}


def test_an_interrupted_add_can_be_repeated(copy: Path, board: Path) -> None:
    left = temporary_name(board / "entries" / "Thrice")
    left.mkdir(parents=True)
    unpack(copy, left)
    (left / ABOUT).unlink()
    assert "submitted" in invoke("add", copy, board)
    assert statuses(board) == {"Thrice": "submitted"}
    assert "is as it must be" in invoke("validate", board)


def test_a_submission_says_who_and_what_was_pretrained(place: Path, protocol: Path) -> None:
    text = invoke("submit", place / "erm", protocol, "--as", place / "x.zip", code=2)
    assert "--author and --pretraining must say something" in text
    text = invoke("submit", place / "erm", protocol, "--as", place / "x.zip", *SAYS, code=2)
    assert "has no row that the board open.v1 has not" in " ".join(text.split())


def test_results_of_an_edited_method_are_neither_submitted_nor_frozen(
    place: Path, board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edited.py").write_text(METHOD_FILE.format(name="Edited", factor=3))
    monkeypatch.syspath_prepend(tmp_path)
    out, plugin = tmp_path / "mine", ("--plugin", "edited")
    invoke("run", board, "--algorithm", "Edited", "--out", out, *plugin, *ONE)
    (tmp_path / "edited.py").write_text(METHOD_FILE.format(name="Edited", factor=4))
    reason = "Edited has changed since 6 of its 6 runs were trained (edited.py)"
    assert reason in " ".join(invoke("validate", out, board, *plugin, code=1).split())
    submit = ("submit", out, board, "--as", tmp_path / "x.zip", *plugin, *SAYS)
    for command in (submit, ("freeze", out, board, *plugin)):
        assert reason in " ".join(invoke(*command, code=2).split())


def test_a_submission_may_lack_datasets(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(place)
    small = {"algorithms": ["ERM"], "hparam_draws": 2, "trials": 3}
    board = new_board(tmp_path, "wide.v1", **small)
    invoke("run", board, "--algorithm", "ERM", "--out", tmp_path / "erm", *ONE)
    invoke("freeze", tmp_path / "erm", board)
    out, archive = tmp_path / "mine", tmp_path / "half.zip"
    mine = ("--algorithm", "Thrice", "--plugin", "thrice", "--dataset", "SEM", "--out", out, *ONE)
    invoke("run", board, *mine)
    invoke("submit", out, board, "--as", archive, "--plugin", "thrice", *SAYS)
    invoke("verify", archive, board, "--run-code", "--sample", 2, "--workers", 1)
    assert "verified by rerun" in invoke("add", archive, board)
    assert "is as it must be" in invoke("validate", board)
    shown = json.loads(invoke("show", board, "--format", "json"))
    labels = {(row["dataset"], row["label"]) for row in shown}
    assert ("SEM", "Thrice") in labels and ("digits", "Thrice") not in labels


def repacked(archive: Path, folder: Path, rehash: bool = True) -> None:
    """Write a folder as the submission, whose digests are those of its files."""
    about = json.loads((folder / ABOUT).read_text())
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != ABOUT]
    if rehash:
        about["files"] = {str(p.relative_to(folder)): sha256(p) for p in files}
    (folder / ABOUT).write_text(json.dumps(about))
    with ZipFile(archive, "w") as packed:
        for path in [*files, folder / ABOUT]:
            packed.write(path, str(path.relative_to(folder)))


def thrice(folder: Path) -> Part:
    """The part of a submission."""
    return frozen_part(folder, "SEM", "Thrice")


def rewrite(folder: Path, table: pa.Table | None = None, **changes: object) -> None:
    """Write the part of a submission with another table, or saying something else of all of its runs."""
    part = thrice(folder)
    new = Part(part.about.model_copy(update=changes), part.table if table is None else table)
    write_parts([new], dataset_file(folder, "SEM"))


def edited_part(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, change(thrice(folder).table))


def replaced(name: str, change: Callable[[object], object]) -> Callable[[Path], None]:
    """A column of the part with other values."""

    def edit(table: pa.Table) -> pa.Table:
        values = [change(value) for value in table[name].to_pylist()]
        column = pa.array(values, table[name].type)
        return table.set_column(table.column_names.index(name), name, column)

    return edited_part(edit)


def reidentified(name: str, change: Callable[[object], object]) -> Callable[[Path], None]:
    """A column of the part with other values, and the ids of these specs."""

    def lie(folder: Path) -> None:
        replaced(name, change)(folder)
        identify(folder)

    return lie


def identify(folder: Path) -> None:
    """Write the part with the ids of its specs."""
    from oodbench.board.parts import OF_A_RUN
    from oodbench.results.run_spec import RunSpec

    part = thrice(folder)
    runs = part.runs().to_dict(orient="records")
    specs = (part.about.spec | {n: run[n] for n in OF_A_RUN} for run in runs)
    new = {run["id"]: RunSpec.from_json(s).id for run, s in zip(runs, specs, strict=True)}
    ids = pa.array([new[i] for i in part.table["id"].to_pylist()])
    rewrite(folder, part.table.set_column(0, "id", ids))


def spec(**changes: object) -> Callable[[Path], None]:
    """A part whose runs have other specs, with ids that agree."""

    def lie(folder: Path) -> None:
        rewrite(folder, spec=thrice(folder).about.spec | changes)
        identify(folder)

    return lie


def shared(**changes: object) -> Callable[[Path], None]:
    """A part that says something else of all of its runs."""
    return lambda folder: rewrite(folder, **changes)


def context(**changes: object) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, context={**thrice(folder).about.context, **changes})


def apart(folder: Path) -> None:
    rewrite(folder, spec={**thrice(folder).about.spec, "transductive": True})


def on_another_dataset(folder: Path) -> None:
    part = thrice(folder)
    spec = part.about.spec | {"dataset_label": "Spirals"}
    context = {**part.about.context, "dataset_label": "Spirals"}
    about = part.about.model_copy(update={"spec": spec, "context": context})
    write_parts([Part(about, part.table)], dataset_file(folder, "Spirals"))


def under_another_name(folder: Path) -> None:
    dataset_file(folder, "SEM").rename(dataset_file(folder, "other"))


def left_out(name: str) -> Callable[[Path], None]:
    """The column is null in the first row that has a number."""

    def edit(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[next(i for i, value in enumerate(values) if value is not None)] = None
        place = table.column_names.index(name)
        return table.set_column(place, name, pa.array(values, table[name].type))

    return edited_part(edit)


def as_texts(name: str) -> Callable[[Path], None]:
    def edit(table: pa.Table) -> pa.Table:
        texts = pa.array([f"{value} of it" for value in table[name].to_pylist()])
        return table.set_column(table.column_names.index(name), name, texts)

    return edited_part(edit)


def each_step_twice(folder: Path) -> None:
    table = thrice(folder).table
    rewrite(folder, table.take([i // 2 for i in range(2 * len(table))]))


def part_twice(folder: Path) -> None:
    write_parts([thrice(folder)] * 2, dataset_file(folder, "SEM"))


def twice(folder: Path) -> None:
    """The runs once more under other ids, as their holdout is another."""
    first = thrice(folder).table
    reidentified("validation_environments", lambda _: [])(folder)
    rewrite(folder, pa.concat_tables([thrice(folder).table, first]))


another_test_set = reidentified("test_environments", lambda _: ["4"])
hparams_picked = reidentified("hparams", lambda v: json.dumps(json.loads(str(v)) | {"lr": 0.5}))


def provenance(**changes: object) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, provenance={**thrice(folder).about.provenance, **changes})


def about(**changes: object) -> Callable[[Path], None]:
    def lie(folder: Path) -> None:
        values = json.loads((folder / ABOUT).read_text())
        (folder / ABOUT).write_text(json.dumps(values | changes))

    return lie


def another_file(folder: Path) -> None:
    (folder / "method" / "thrice.py").write_text(METHOD_FILE.format(name="Thrice", factor=2))


def same_steps_in_other_words(folder: Path) -> None:
    (folder / "method" / "thrice.py").write_text(
        METHOD_FILE.format(name="Thrice", factor="(2 + 1)")
    )


def one_more_file(folder: Path) -> None:
    (folder / "method" / "more.py").write_text("")


def renamed_row(folder: Path) -> None:
    rewrite(folder, spec=thrice(folder).about.spec | {"label": "ERM"})
    about(rows=["ERM"])(folder)


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a changed value": (replaced("value/mse/5", lambda v: 0.5 * float(str(v))), "off"),
    "a changed score": (replaced("score/val_env", lambda v: 0.1), "off"),
    "another file": (another_file, "the method's file is not the code that trained its runs"),
    "other words": (same_steps_in_other_words, "the method's file is not the code"),
    "more draws": (
        replaced("draw", lambda d: int(str(d)) + 1),
        "has the spec of",
    ),
    "fewer trials": (
        edited_part(lambda t: t.filter(pa.compute.less(t["trial"], 2))),
        "trial 2 missing (3 are planned)",
    ),
    "more steps": (spec(steps=40), "steps is not the protocol's"),
    "picked hyperparameters": (hparams_picked, "other hyperparameters than its draws"),
    "a row of the board": (renamed_row, "the board has a row ERM already"),
    "another version": (provenance(oodbench="9.9"), "was trained by oodbench 9.9, and this is"),
    "other data": (
        provenance(data=dict.fromkeys(("0.2", "1", "2", "5"), "0")),
        "has another digest",
    ),
    "no digests of data": (provenance(data={}), "has no digest of its data"),
    "a value left out": (left_out("value/mse/5"), "has runs without value/mse/5"),
    "a score left out": (left_out("score/val_env"), "has not one score by val_env of each run"),
    "each step twice": (each_step_twice, "has a step of a run twice"),
    "a run that diverged": (replaced("diverged", lambda _: True), "give other rows of its part"),
    "other counts": (replaced("count/5", lambda _: 10**9), "give other rows of its part"),
    "texts as values": (as_texts("value/mse/5"), "is damaged"),
    "texts as hyperparameters": (replaced("hparams", lambda _: "{"), "not names with values"),
    "no label": (shared(spec={"algorithm": "Thrice"}), "is damaged: parts.0.about.spec"),
    "another holdout": (spec(holdout=0.1), "holdout is not that of ERM"),
    "years of training": (replaced("seconds", lambda _: float("inf")), "seconds that cannot be"),
    "another protocol": (about(protocol="0" * 64), "of another protocol than that of the board"),
    "no word on pretraining": (about(pretraining=" "), "says nothing on pretraining"),
    "other rows": (about(rows=["Thrice", "Best"]), "not of the rows and the method that it names"),
    "another selection rule": (shared(selection="oracle"), "has not the selection of ERM"),
    "the label of another row": (context(label="ERM"), "has not the context of ERM"),
    "a metric turned round": (context(higher_is_better=True), "has not the context of ERM"),
    "another constant answer": (shared(constants=[]), "has not the constants of ERM"),
    "ranked apart": (apart, "Thrice is not transductive, and its part on SEM says otherwise"),
    "a dataset that the board has not": (on_another_dataset, "has no row on Spirals yet"),
    "another test set": (another_test_set, "has other environments than ERM in trial 0"),
    "each run twice": (twice, "12 runs, and 6 are planned"),
    "a folder elsewhere": (about(algorithm="/tmp/Thrice"), "algorithm: "),
    "a file of another name": (under_another_name, "do not have the names of the datasets"),
    "a part twice": (part_twice, "Thrice on SEM stands there twice"),
    "two methods": (one_more_file, "must have one file of a method"),
}


def test_a_file_of_another_method_is_no_file_of_one_that_is_registered(
    protocol: Path, board: Path, tmp_path: Path
) -> None:
    run = ("run", protocol, "--algorithm", "SD", "--out", tmp_path / "sd", *ONE)
    invoke(*run)
    out = tmp_path / "sd.zip"
    invoke("submit", tmp_path / "sd", board, "--as", out, *SAYS)
    with ZipFile(out) as packed:
        packed.extractall(tmp_path / "lie")
    (tmp_path / "lie" / "method" / "sd.py").write_text("raise SystemExit")
    repacked(out, tmp_path / "lie")
    text = invoke("verify", out, board, "--run-code", "--sample", 1, "--workers", 1, code=2)
    assert "the method's file is not the code of SD, which is registered" in " ".join(text.split())


def test_an_edited_entry_is_no_longer_what_was_submitted(copy: Path, board: Path) -> None:
    invoke("add", copy, board)
    entry = board / "entries" / "Thrice"
    replaced("value/mse/5", lambda v: 0.5 * float(str(v)))(entry)
    invoke("summarize", board)
    text = " ".join(invoke("validate", board, code=1).split())
    assert "parts/SEM.parquet is not the file that was submitted" in text
    (entry / "method" / "thrice.py").unlink()
    text = " ".join(invoke("validate", board, code=1).split())
    assert "method/thrice.py is not the file that was submitted" in text


RETRAINED = ("a changed score", "another file")
"""Lies that are found by training again, as others are that are not left to the night."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in RETRAINED)) for n in LIES]
)
def test_a_lie_is_refused_in_one_sentence(
    name: str, copy: Path, board: Path, tmp_path: Path
) -> None:
    lie, reason = LIES[name]
    with ZipFile(copy) as packed:
        packed.extractall(tmp_path / "lie")
    lie(tmp_path / "lie")
    repacked(copy, tmp_path / "lie")
    text = invoke("verify", copy, board, "--run-code", "--sample", 2, "--workers", 1, code=2)
    error = text[text.index("error: ") :]
    assert reason in error and error.count("\n") == 1, text
    assert not copy.with_name("thrice.verified.json").exists()


@pytest.mark.parametrize(
    "name", ["../evil.py", "/evil.py", "method/../../evil.py", "x.txt", ".", "./method/y.py"]
)
def test_a_file_of_another_place_is_not_unpacked(name: str, copy: Path, tmp_path: Path) -> None:
    with ZipFile(copy, "a") as packed:
        packed.writestr(name, "evil")
    with pytest.raises(UserError, match="other files than it names"):
        unpack(copy, tmp_path / "to")
    assert not (tmp_path / "evil.py").exists() and not (tmp_path / "to").exists()


def test_a_byte_changed_on_the_way_is_seen(copy: Path, tmp_path: Path) -> None:
    with ZipFile(copy) as packed:
        packed.extractall(tmp_path / "lie")
    another_file(tmp_path / "lie")
    repacked(copy, tmp_path / "lie", rehash=False)
    with pytest.raises(UserError, match=r"thrice\.py is not the file that was submitted"):
        unpack(copy, tmp_path / "to")


def test_what_is_no_submission_is_one_sentence(copy: Path, board: Path, tmp_path: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:500])
    assert "is no zip file, an encrypted or a torn one" in invoke("verify", copy, board, code=2)
    with ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("a", "b")
    assert "is no submission" in invoke("add", tmp_path / "other.zip", board, code=2)


def test_an_encrypted_submission_is_refused(copy: Path, tmp_path: Path) -> None:
    data = bytearray(copy.read_bytes())
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(start)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(start, at + 4)
    copy.write_bytes(data)
    with pytest.raises(UserError, match="an encrypted or a torn one"):
        unpack(copy, tmp_path / "to")


def test_a_run_that_a_table_shows_is_among_those_that_are_trained_again(
    copy: Path, tmp_path: Path
) -> None:
    submission = unpack(copy, tmp_path / "to")
    chosen = set(choose(board_frames(submission.parts))["id"])
    assert 0 < len(chosen) < len(submission.parts[0].ids)
    firsts = {_sample(submission, 1, seed)[0][0].id for seed in range(20)}
    assert firsts <= chosen and len(firsts) > 1
    assert {spec.id for spec, _ in _sample(submission, 99, 0)} == set(submission.parts[0].ids)


def test_the_code_of_a_submission_sees_no_variable_of_ours(
    place: Path, protocol: Path, board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = METHOD_FILE.format(name="Spy", factor=1)
    spy = f"import os\n\nassert 'OODBENCH_SECRET' not in os.environ\n{spy}"
    (tmp_path / "spy.py").write_text(spy)
    monkeypatch.syspath_prepend(tmp_path)
    mine = ("--algorithm", "Spy", "--plugin", "spy", "--out", tmp_path / "mine", *ONE)
    invoke("run", board, *mine)
    out = tmp_path / "spy.zip"
    invoke("submit", tmp_path / "mine", board, "--as", out, "--plugin", "spy", *SAYS)
    monkeypatch.setenv("OODBENCH_SECRET", "1")
    assert "all are equal" in " ".join(
        invoke("verify", out, board, "--run-code", "--sample", 1, "--workers", 1).split()
    )


def test_the_workflow_verifies_and_adds() -> None:
    from tests.helpers.paths import ROOT

    file = yaml.safe_load((ROOT / ".github" / "workflows" / "board_entry.yml").read_text())
    steps = [str(step.get("run")) for step in file["jobs"]["entry"]["steps"]]
    for command in ("board verify", "board add", "board validate"):
        assert any(command in step for step in steps)
    assert file["permissions"] == {"contents": "read"}
    (makes,) = (step for step in steps if "data make" in step)
    absent = absent_data(protocol_of(find_board("small.v2")), None).values()
    assert {error.command.split()[4] for error in absent} < {*re.findall(r"\w+", makes)}
