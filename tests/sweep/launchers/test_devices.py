import pytest

from oodbench.errors import UserError
from oodbench.sweep.launchers.devices import available_devices


def test_devices_are_checked() -> None:
    assert available_devices("cpu") == ("cpu",)
    with pytest.raises(UserError, match="no device 'cuda:99'"):
        available_devices("cuda:99")
