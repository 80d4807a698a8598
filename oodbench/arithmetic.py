"""Portable arithmetic: a CPU run has the same bits on every x86-64 processor that has AVX2.

torch and numpy choose their kernels by what the processor can do, and MKL also by who made it. Kernels
add in different orders, and some begin with the processor's own approximation of 1 / sqrt(x), which no
standard fixes. Here every processor is given the same kernels.
"""

import ctypes
import os
import platform
import sys
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path

PORTABLE, NATIVE = "portable", "native"
SWITCH = "OODBENCH_ARITHMETIC"
"""The environment variable that, set to `native`, keeps commands from changing their own process."""
MKL_AVX2 = 10
"""MKL's number of `MKL_CBWR=AVX2`."""
VECTOR_MATH = 1
"""MKL's number of the vector functions (exp, log, sqrt, ...) without the approximating instructions `rcpps`
and `rsqrtps`. The kernels for AVX2 use these, and AMD's and Intel's processors give different results."""
LOAD_EAX = b"\x8b\x05"
"""The code of `mov eax, [rip + offset]`, followed by four bytes of the offset."""


@cache
def variables() -> dict[str, str]:
    """The environment variables of portable arithmetic; none if the processor lacks what it needs.

    They have to be set before numpy and torch are loaded.
    """
    flags = _processor_flags() if platform.machine() in ("x86_64", "AMD64") else set()
    if not {"avx2", "fma"} <= flags:
        return {}
    values = {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
        "MKL_VML_DEBUG_CPU_TYPE": str(VECTOR_MATH),
        "OPENBLAS_CORETYPE": "Haswell",
    }
    if "avx512vl" in flags:  # numpy warns where there is nothing to disable
        new = tuple(map(int, version("numpy").split(".")[:2])) >= (2, 4)
        values["NPY_DISABLE_CPU_FEATURES"] = "X86_V4" if new else "AVX512F AVX512CD AVX512_SKX"
    return values


def environment(arithmetic: str) -> dict[str, str]:
    """Environment variables for a child process that computes with `arithmetic`."""
    kept = {name: value for name, value in os.environ.items() if variables().get(name) != value}
    return kept | {SWITCH: NATIVE} if arithmetic == NATIVE else kept | variables()


def prepare() -> None:
    """Ask for portable arithmetic in this process; to be called before numpy and torch are loaded.

    The package's commands call it unless the environment variable OODBENCH_ARITHMETIC is `native`.
    """
    if os.environ.get(SWITCH) != NATIVE:
        os.environ.update(variables())


def settle() -> None:
    """Have MKL obey `MKL_CBWR` on every maker's processors, if this process asks for portable arithmetic.

    By default MKL obeys on Intel's processors alone. It remembers the maker in a variable, which this
    function sets. After the first use of MKL that is too late, and `why_native` says so.
    """
    if "torch" in sys.modules and _is_asked_for():
        is_intel = _remembered("mkl_serv_intel_cpu_true")
        if is_intel is not None and is_intel.value < 0:
            is_intel.value = 1


def why_native() -> str | None:
    """Why this process, which has loaded torch, does not compute portably; None: it does."""
    if not variables():
        return "portable arithmetic is of Linux on x86-64 processors with AVX2"
    if not _is_asked_for():
        return "numpy and torch were loaded before portable arithmetic was asked for"
    settle()
    torch = sys.modules["torch"]
    vector_math = _remembered("mkl_vml_serv_cpu_detect")
    if vector_math is None or _remembered("mkl_serv_intel_cpu_true") is None:
        return f"torch {torch.__version__} has no MKL of the kind that is known here"
    held = _library().mkl_serv_cbwr_get(1) == MKL_AVX2 and vector_math.value in (-1, VECTOR_MATH)
    if torch.backends.cpu.get_cpu_capability() != "AVX2" or not held or _numpy_has_avx512():
        return "numpy or torch was used before portable arithmetic was asked for"
    return None


def in_force() -> str:
    """How this process, which has loaded torch, computes on the CPU: PORTABLE or NATIVE."""
    return PORTABLE if why_native() is None else NATIVE


def lost_here() -> str:
    """A sentence on the lack of portable arithmetic on this system; empty if the system has it."""
    if variables():
        return ""
    return (
        "This system has no portable arithmetic (Linux on x86-64 with AVX2 does): results are right, and "
        "their last bits may differ on other machines."
    )


@cache
def warn_unless(arithmetic: str) -> None:
    """Warn, once, if this process computes with other arithmetic than a run asks for."""
    reason = why_native()
    if variables() and arithmetic == PORTABLE and reason is not None:
        warnings.warn(
            f"on another processor the last bits of these results may differ, since {reason}: "
            "`oodbench.arithmetic.prepare()` as a script's first line makes them equal",
            stacklevel=2,
        )
    elif arithmetic == NATIVE and reason is None:
        warnings.warn(
            "this process computes with portable arithmetic, and so does a run in it that asks for native: "
            f"start it with the environment variable {SWITCH}=native",
            stacklevel=2,
        )


def _is_asked_for() -> bool:
    return bool(variables()) and variables().items() <= os.environ.items()


def _processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(sys.modules["torch"].__path__[0]) / "lib" / "libtorch_cpu.so"))


@cache
def _remembered(function: str) -> ctypes.c_int32 | None:
    """The variable in which a function of MKL remembers what it returns, -1 before its first call.

    The code of such a function begins by reading it; None if this one's does not.
    """
    try:
        address = ctypes.cast(getattr(_library(), function), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return None
    code = ctypes.string_at(address, 6)
    if not code.startswith(LOAD_EAX):
        return None
    offset = int.from_bytes(code[2:], "little", signed=True)
    return ctypes.c_int32.from_address(address + len(code) + offset)


def _numpy_has_avx512() -> bool:
    modules = (sys.modules.get(f"numpy.{core}._multiarray_umath") for core in ("_core", "core"))
    features: dict[str, bool] = next((m.__cpu_features__ for m in modules if m is not None), {})
    return any(features.get(name) for name in ("X86_V4", "AVX512_SKX"))
