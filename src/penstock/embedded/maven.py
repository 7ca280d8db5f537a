"""Jars of a server, fetched once by Maven into a directory of the user's."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.embedded.java import cache_directory
from penstock.errors import EmbeddedServerFailed
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>embedded</artifactId><version>1</version>
<dependencies>{}</dependencies></project>"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def fetched_jars(
    name: str, artifacts: Sequence[str], instead: str = "", cache: Path | None = None
) -> Path:
    """The directory `name` of the cache, which holds the jars of artifacts and of all that they need.

    Args:
        name: of the server, with its version.
        artifacts: as Maven writes them, `group:artifact:version`.
        instead: what a person can do without Maven.
        cache: another directory than the user's.

    Raises:
        EmbeddedServerFailed: they are not there, and cannot be had.
    """
    try:
        cache = cache or cache_directory()
        jars = cache / name
        if not jars.exists():
            _fetch(name, artifacts, instead, jars)
    except OSError as error:
        raise EmbeddedServerFailed(
            f"the jars of {name} cannot be stored: {error.strerror or error}",
            str(cache or "penstock demo"),
            "set XDG_CACHE_HOME to a directory that you may write to",
        ) from None
    return jars


def _fetch(name: str, artifacts: Sequence[str], instead: str, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise EmbeddedServerFailed(
            f"no {name} to start, and there is no mvn to fetch it with",
            "penstock demo",
            f"install Maven{instead and f', or {instead}'}",
        )
    cache = jars.parent
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        wanted = "".join(_DEPENDENCY.format(*each.split(":")) for each in artifacts)
        Path(directory, "pom.xml").write_text(_POM.format(wanted), encoding="utf-8")
        try:
            done = subprocess.run(  # noqa: S603
                [maven, "-q", "-B", _PLUGIN, f"-DoutputDirectory={directory}/lib"],
                cwd=directory,
                capture_output=True,
                timeout=timing().embedded_fetch_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            done = None
        if done is None or done.returncode != 0:
            raise EmbeddedServerFailed(
                f"mvn cannot fetch {name}",
                "penstock demo",
                f"see whether mvn reaches a repository{instead and f', or {instead}'}",
            )
        # Another demo may have been quicker.
        if not jars.exists():
            Path(directory, "lib").rename(jars)
