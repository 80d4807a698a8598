import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from oodbench.files import whole_file, whole_folder, write_whole


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_takes_its_name_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with whole_file(path) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert names(tmp_path) == ["file"]


def test_an_error_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "before")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert names(tmp_path) == ["file"]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may pass 64 KiB: a write beyond it fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_disk_without_room_leaves_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large") as full:
        write_whole(tmp_path / "file", "x" * 2**20)
    assert full.value.filename == str(tmp_path / "file")
    assert names(tmp_path) == []


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_text() == "first"  # the outer block ends last


def test_a_folder_takes_its_name_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with whole_folder(path) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").write_text("text")
        assert not path.exists()
    assert (path / "inner" / "file").read_text() == "text"
    assert names(tmp_path) == ["folder"]


def test_a_folder_that_another_made_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with whole_folder(path) as temporary:
        (temporary / "file").write_text("second")
        with whole_folder(path) as other:
            (other / "file").write_text("first")
    assert (path / "file").read_text() == "first"
    assert names(tmp_path) == ["folder"]


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), whole_folder(tmp_path / "folder") as temporary:
        (temporary / "file").write_text("text")
        raise ValueError("no")
    assert names(tmp_path) == []
