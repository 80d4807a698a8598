"""A device without hardware, on which the place of every operation is followed.

`pretend` is a Python-only backend of torch. Its tensors are fake ones: they have shapes, types and a
device, but no values, so that mixing devices and reading a value raise errors of torch's own. What
is on the CPU is real. Within `on_device` every crossing between the device and the host is noted with
the lines of ours that it comes from, and every allocation on the device with its size.

What is not seen: waiting that one of CUDA's kernels does by itself, such as a decomposition's check.
"""

import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oodbench.algorithms import Algorithm
from oodbench.data.pictures import augment
from oodbench.datasets import Normalization
from tests.helpers.paths import ROOT

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no backends in Python", allow_module_level=True)

T = TypeVar("T")

DEVICE = "pretend"
backend_registration._setup_privateuseone_for_python_backend(DEVICE)
# checkpoints ask the backend of the process, whichever device they are on
setattr(getattr(torch, DEVICE), "get_amp_supported_dtype", lambda: [torch.bfloat16])  # noqa: B010
aten: Any = torch.ops.aten
MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)
INDEXED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
PINNED = "a pinned copy, not waited for"
"""The one crossing that a step may have."""


@dataclass
class Watch:
    """What happened on the device."""

    crossings: list[str] = field(default_factory=list)
    """`what at file:line < file:line`, the innermost line of ours first."""
    reads: int = 0
    """How often values of a whole tensor were read, with `tolist`."""
    sizes: list[int] = field(default_factory=list)
    """The bytes of each allocation, in their order."""
    live: int = 0
    """The bytes of what was allocated and is still there."""
    _pinned: set[int] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)

    @property
    def others(self) -> list[str]:
        """The crossings that a step may not have."""
        return [crossing for crossing in self.crossings if not crossing.startswith(PINNED)]

    def forget(self) -> None:
        """Begin anew, but for what is on the device."""
        self.crossings, self.sizes, self.reads = [], [], 0

    @property
    def copies(self) -> int:
        """How many crossings a step may have were there."""
        return len(self.crossings) - len(self.others)

    def note(self, what: str) -> None:
        stack = [f for f in traceback.extract_stack() if f.filename.startswith(str(ROOT))]
        frames = [f"{Path(f.filename).name}:{f.lineno}" for f in stack if f.filename != __file__]
        self.crossings.append(f"{what} at {' < '.join(frames[::-1][:3])}")

    def allocated(self, tensor: Tensor) -> None:
        """Note the storage of a tensor on the device, if it is a new one."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.sizes.append(size)
            self.live += size
            weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class _Functions(TorchFunctionMode):
    """Notes what torch does below the operations that can be seen: numbers made tensors, values read."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.new_tensor or (func in MAKERS and not isinstance(args[0], Tensor)):
            like = args[0] if func is Tensor.new_tensor else None
            device = torch.device(kwargs.get("device") or ("cpu" if like is None else like.device))
            if device.type == DEVICE:
                self.watch.note("a tensor made of numbers")
                given = args[0] if like is None else args[1]
                dtype = kwargs.get("dtype") or (None if like is None else like.dtype)
                made = torch.tensor(given, dtype=dtype)
                return torch.empty(made.shape, dtype=made.dtype, device=DEVICE)
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            self.watch._pinned.add(id(pinned))
            weakref.finalize(pinned, self.watch._pinned.discard, id(pinned))
            return pinned
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations on the device as fake ones, and notes copies, places from the host, allocations."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(map(_is_there, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        kind = func.overloadpacket
        if kind is aten._to_copy and kwargs.get("device") is not None:
            self._copied(args[0], torch.device(kwargs["device"]), kwargs.get("non_blocking"))
        elif kind is aten.copy_:
            self._copied(args[1], args[0].device, len(args) > 2 and args[2])
        elif kind in INDEXED and args[0].device.type == DEVICE:
            for index in args[1]:
                if index is not None and index.device.type == "cpu":
                    self.watch.note("places from the host")
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    self.watch.note("a mask whose true places are counted")
        if kind is aten._to_copy and not isinstance(args[0], FakeTensor):
            like, dtype = args[0], kwargs.get("dtype") or args[0].dtype
            args, kwargs = (like.shape, like.stride()), {"dtype": dtype, "device": DEVICE}
            func = aten.empty_strided.default
        with self.fake:
            found = func(*args, **kwargs)
        for made in tree_leaves(found):
            if isinstance(made, Tensor) and made.device.type == DEVICE:
                self.watch.allocated(made)
        return found

    def _copied(self, source: Tensor, device: torch.device, unwaited: Any) -> None:
        if source.device.type == device.type:
            return
        if device.type == DEVICE and unwaited and id(source) in self.watch._pinned:
            self.watch.note(PINNED)
        else:
            self.watch.note(f"a copy from {source.device.type} to {device.type}")


def _is_there(value: object) -> bool:
    on = value.type if isinstance(value, torch.device) else None
    return isinstance(value, FakeTensor) or on == DEVICE


def _zeros(shape: tuple[int, ...]) -> Any:
    return [_zeros(shape[1:]) for _ in range(shape[0])] if shape else 0.0


@contextmanager
def on_device() -> Iterator[Watch]:
    """Within it the device is there, and what happens on it is noted.

    `checkpoint` then runs its function once, not a second time in the backward pass, where torch's engine
    aborts on a backend without kernels.
    """
    watch = Watch()
    for kept in (augment._corners, Normalization.on):
        kept.cache_clear()
    whole = mock.patch("oodbench.gradients.backward.checkpoint", lambda f, *inputs, **_: f(*inputs))
    plain = mock.patch("oodbench.gradients.backward.Tensor", FakeTensor)  # whose type is asked for

    def read(tensor: Tensor) -> Any:
        watch.reads += 1
        return _zeros(tensor.shape)

    single = torch.autograd.set_multithreading_enabled(False)
    reading = mock.patch.object(FakeTensor, "tolist", read)
    with single, whole, plain, reading, _Functions(watch), _Operations(watch):
        yield watch


def fake(like: Tensor) -> Tensor:
    """A tensor like this one on the device; real numbers are float32 there."""
    dtype = torch.float32 if like.is_floating_point() else like.dtype
    return torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=DEVICE)


def moved(given: T) -> T:
    """A dataclass with the tensors in it on the device."""
    assert is_dataclass(given)
    values = {f.name: getattr(given, f.name) for f in fields(given)}
    there = {name: fake(v) for name, v in values.items() if isinstance(v, Tensor)}
    return replace(given, **there)  # type: ignore[type-var]


def move(module: nn.Module) -> None:
    """Put parameters and buffers on the device; `Module.to` cannot swap real ones for fake ones."""
    for m in module.modules():
        for name, p in list(m._parameters.items()):
            if p is not None:
                m._parameters[name] = nn.Parameter(fake(p), p.requires_grad)
        for name, b in list(m._buffers.items()):
            if b is not None:
                m._buffers[name] = fake(b)


def move_algorithm(algorithm: Algorithm) -> None:
    move(algorithm)
    algorithm.optimizers = algorithm.configure()
