"""Small packages of npm and Debian, as their programs write them."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from oodbench.data.packages import Package, digest


def package(registry: str, name: str, files: Mapping[str, bytes], notice: str = "") -> Package:
    """A package of version 1.0 of which all files but the notice are read."""
    read = {path: content for path, content in files.items() if path != notice}
    pattern = "|".join(path.replace(".", r"\.") for path in read)
    return Package(registry, name, "1.0", pattern, digest(read), "MIT", "Ann", notice)


def write(package: Package, files: Mapping[str, bytes], folder: Path) -> Path:
    """The archive of a package with these files, under the name that its version has."""
    path = folder / package.archive
    if package.registry == "npm":
        about = json.dumps({"name": package.name, "version": "1.0"}).encode()
        path.write_bytes(_tar({**files, "package.json": about}, "package/", "w:gz"))
    else:
        content = b"!<arch>\n"
        data = _tar(files, "./", "w:xz")
        for name, member in (("debian-binary", b"2.0\n1"), ("data.tar.xz", data)):
            content += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(member):<10}`\n".encode()
            content += member + b"\n" * (len(member) % 2)
        path.write_bytes(content)
    return path


def _tar(files: Mapping[str, bytes], prefix: str, mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:  # type: ignore[call-overload]
        for path, content in files.items():
            member = tarfile.TarInfo(prefix + path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()
