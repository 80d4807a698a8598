import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from oodbench.files import nearest, whole_file, whole_folder, write_whole


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_takes_its_name_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "before")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and names(tmp_path) == ["file"]
    with whole_file(path) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after" and names(tmp_path) == ["file"]
    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_text() == "first"  # the outer block ends last


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


def test_a_folder_takes_its_name_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with pytest.raises(ValueError, match="no"), whole_folder(path) as temporary:
        (temporary / "file").write_text("text")
        raise ValueError("no")
    assert names(tmp_path) == []
    with whole_folder(path) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").write_text("second")
        assert not path.exists()
        with whole_folder(path) as other:
            (other / "file").write_text("first")
    assert (path / "file").read_text() == "first"  # what another made first stays
    assert names(tmp_path) == ["folder"]
    with whole_folder(tmp_path / "nested") as temporary:
        (temporary / "inner").mkdir()
    assert (tmp_path / "nested" / "inner").is_dir()


def test_a_missing_file_may_be_one_folder_below(tmp_path: Path) -> None:
    (tmp_path / "patients").mkdir()
    (tmp_path / "private").mkdir(0)
    for name in ("visit.csv", "patients/visits.csv"):
        (tmp_path / name).touch()
    assert nearest(tmp_path / "visits.csv") == "; did you mean patients/visits.csv?"
    assert nearest(tmp_path / "vist.csv") == "; did you mean visit.csv?"
    assert not nearest(tmp_path / "scans.npz") and not nearest(tmp_path / "sites" / "visits.csv")
