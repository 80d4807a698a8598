"""Every extra works, installed alone into a fresh environment."""

import pytest

from tests.install.extras import USES, row


@pytest.mark.nightly
@pytest.mark.parametrize("name", USES)
def test_an_extra_installed_alone_works(name: str) -> None:
    assert row(name, shared=True).startswith(f"| {name} |")
