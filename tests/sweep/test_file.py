import pytest

from oodbench.errors import UserError
from oodbench.sweep.file import find, named_sweeps, read


def test_names_are_written_with_hyphens_and_are_those_in_the_files() -> None:
    for name, path in named_sweeps().items():
        assert "_" not in name
        assert read(path).name == name


@pytest.mark.parametrize("old", ["spirals_16", "label_noise_small", "domainbed_mnist_lite"])
def test_names_with_underscores_still_find_their_sweeps(old: str) -> None:
    assert find(old) == named_sweeps()[old.replace("_", "-")]


def test_a_protocol_is_found_by_its_name() -> None:
    assert find("rex-2021").parent.name == "protocols"
    with pytest.raises(UserError, match="did you mean rex-2021"):
        find("rex-2020")
