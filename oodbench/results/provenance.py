"""The code, libraries and machine behind a number."""

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oodbench.arithmetic import in_force
from oodbench.identity import combined, commit
from oodbench.version import __version__

OF_THE_CODE = ("oodbench", "commit", "digests")
"""The keys of a provenance that name the code and data of a run."""


def slurm_job() -> str | None:
    """The Slurm job that this process is part of, as `id` or `array_index`; None outside of one."""
    array, index = (os.environ.get(f"SLURM_ARRAY_{n}_ID") for n in ("JOB", "TASK"))
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID")


@cache
def machine() -> str:
    """The architecture, and the processor's name if the system knows it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{platform.machine()}, {line.partition(':')[2].strip()}"
    return ", ".join(filter(None, (platform.machine(), platform.processor())))


def provenance(device: str, threads: int, plugins: Sequence[str]) -> dict[str, Any]:
    """The code, libraries and machine of this process, which runs record; not part of their ids."""
    return {
        "oodbench": __version__,
        "commit": commit(),
        "plugins": list(plugins),
        "torch": version("torch"),
        "python": platform.python_version(),
        "host": platform.node(),
        "machine": machine(),
        "arithmetic": in_force(),
        "device": device,
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "slurm_job": slurm_job(),
        "threads": threads,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def begun_by(made_by: Mapping[str, Any], begun: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance `made_by` of a resumed run, but with the code and data of its first start."""
    rest = {name: value for name, value in made_by.items() if name not in OF_THE_CODE}
    return rest | {name: begun[name] for name in OF_THE_CODE if name in begun}


def method_digest(provenance: Mapping[str, Any]) -> str | None:
    """Digest of the source of the method that trained a run, or None if not recorded.

    The frozen runs of a board have it as `source`.
    """
    method = provenance.get("digests", {}).get("method")
    return combined(method) if method else provenance.get("source")


def code(provenance: Mapping[str, Any]) -> str:
    """The version and commit that trained a run."""
    if "code" in provenance:
        return str(provenance["code"])
    commit = str(provenance.get("commit") or "no commit")
    short = commit[:12] + ("+" if commit[12:].endswith("+") else "")
    return f"oodbench {provenance.get('oodbench', '?')} ({short})"


def versions(provenances: Iterable[Mapping[str, Any]]) -> list[str]:
    """The distinct package versions that trained some runs."""
    return list(dict.fromkeys(str(made.get("oodbench", "?")) for made in provenances if made))


def made_by(provenances: Iterable[Mapping[str, Any]]) -> str:
    """Versions and machine that trained some runs: `oodbench 0.2.0, torch 2.15.0, Intel Xeon`."""
    known = [made for made in {id(p): p for p in provenances}.values() if made]  # runs share them
    columns = (
        [str(made.get("code", f"oodbench {made.get('oodbench', '?')}")) for made in known],
        [f"torch {made['torch']}" for made in known if "torch" in made],
        [processor(str(made["machine"])) for made in known if "machine" in made],
        [d for made in known if (d := str(made.get("device", "cpu")).partition(":")[0]) != "cpu"],
        [f"{made['arithmetic']} arithmetic" for made in known if "arithmetic" in made],
    )
    return ", ".join(" and ".join(dict.fromkeys(texts)) for texts in columns if texts)


def processor(machine: str) -> str:
    """The processor of a `machine()` by its short name: `Intel Xeon`, `AMD EPYC 7B13`."""
    name = re.sub(r"^x86_64, |\((?:R|TM)\)| CPU| \d+-Core| Processor| @ .*", "", machine)
    return " ".join(name.split())
