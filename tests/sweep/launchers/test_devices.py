import pytest

from oodbench.errors import UserError
from oodbench.sweep.launchers.devices import available_devices, gpus_of


def test_devices_are_checked() -> None:
    assert available_devices("cpu") == ("cpu",)
    with pytest.raises(UserError, match="no device 'cuda:99'"):
        available_devices("cuda:99")


def test_gpus_have_the_names_that_the_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_of(("cuda:0", "cuda:2")) == ("0", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8c1d,7")
    assert gpus_of(("cuda:0", "cuda:1")) == ("5", "GPU-8c1d")
    assert gpus_of(("cpu",)) == () and gpus_of(("cuda:0", "cpu")) == ()
