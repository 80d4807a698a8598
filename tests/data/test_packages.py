"""Packages that carry data: read from archives that are whole and of the right version, or refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from oodbench.data.packages import Package, read, write_licences
from oodbench.errors import MissingError, UserError
from tests.helpers.data import archives

FILES = {"a.json": b"{}", "sub/b.txt": b"text\n", "LICENSE": b"Do as you like."}


@pytest.fixture(params=["npm", "debian"])
def package(request: pytest.FixtureRequest) -> Package:
    name = "@ann/drawings" if request.param == "npm" else "ann-drawings"
    return archives.package(request.param, name, FILES, "LICENSE")


def test_files_and_the_notice_come_from_the_archive(package: Package, tmp_path: Path) -> None:
    archives.write(package, {**FILES, "other": b"?"}, tmp_path)
    assert read([package], "Sketches", tmp_path) == {package.name: FILES}


def test_licences_are_kept_with_their_texts(package: Package, tmp_path: Path) -> None:
    told = write_licences(tmp_path / "L.txt", [package], {package.name: FILES})
    assert told == f"{package.name} 1.0 ({package.registry}), by Ann: MIT"
    kept = (tmp_path / "L.txt").read_text()
    assert kept.startswith(told) and "Do as you like." in kept


def refusal(package: Package, folder: Path | None) -> str:
    with pytest.raises(UserError) as caught:
        read([package], "Sketches", folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_archive_is_named_with_its_command(package: Package, tmp_path: Path) -> None:
    with pytest.raises(MissingError) as caught:
        read([package], "Sketches", tmp_path)
    command = "npm pack @ann/drawings@1.0" if package.registry == "npm" else "apt-get download "
    assert f"lacks {package.archive}" in str(caught.value)
    assert caught.value.command.startswith(command)
    assert refusal(package, tmp_path / "sub") == f"Sketches: there is no folder {tmp_path / 'sub'}"


@pytest.mark.parametrize("left", [0, 20, 0.5, 0.95])
def test_half_an_archive_is_refused(left: float, package: Package, tmp_path: Path) -> None:
    path = archives.write(package, {**FILES, "sub/b.txt": bytes(range(256)) * 64}, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content)) if left < 1 else int(left)])
    assert refusal(package, tmp_path).startswith(f"Sketches: {path} is not a complete package (")


def test_an_archive_with_other_files_is_refused(package: Package, tmp_path: Path) -> None:
    for files in ({**FILES, "a.json": b"[]"}, {"a.json": b"{}"}):
        path = archives.write(package, files, tmp_path)
        sentence = refusal(package, tmp_path)
        assert sentence.startswith(f"Sketches is made of {package}, and the files of {path} differ")


def test_another_release_of_a_debian_package_with_the_same_files_will_do(tmp_path: Path) -> None:
    package = archives.package("debian", "drawings", FILES)
    archives.write(replace(package, version="1.0-2"), FILES, tmp_path)
    assert read([package], "Sketches", tmp_path) == {"drawings": FILES}


def test_a_python_package_is_read_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {"fonts/a.ttf": b"A", "fonts/b.ttf": b"B"}
    package = replace(archives.package("python", "sketches", files), files=r"fonts/.*")
    assert (
        refusal(package, tmp_path) == "Sketches needs sketches; get it with `pip install sketches`"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for path, content in {**files, "__init__.py": b""}.items():
        file = tmp_path / "sketches" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    assert read([package], "Sketches", tmp_path) == {"sketches": files}
    (tmp_path / "sketches" / "fonts" / "b.ttf").unlink()
    sentence = refusal(package, tmp_path)
    assert f"the files of {tmp_path / 'sketches'} differ; `pip install sketches`" in sentence
