"""EmbeddedPostgres: a server of our own, made from nothing and removed without a trace.

For the demo, the benchmarks and the tests. Knows nothing of penstock's pipeline.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Literal, Self, TypeVar
from urllib.parse import quote

from penstock.embedded.binaries import (
    environment,
    find_binaries,
    private_directory,
    runnable_by,
    server_account,
)
from penstock.embedded.guard import dismiss, watch_over
from penstock.embedded.ports import free_port
from penstock.errors import EmbeddedServerFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Part = TypeVar("Part")
StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: dict[str, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "listen_addresses": "127.0.0.1",
    # TCP only: the path of a socket may have 107 characters, and a temporary directory more.
    "unix_socket_directories": "",
    "log_line_prefix": "%m [%p] %q%a ",
}


class EmbeddedPostgres:
    """One Postgres server on a free port of 127.0.0.1, with a directory of its own.

    A context manager: entering makes and starts it, leaving stops and removes it. As root it runs
    as another user, see `server_account`. `settings` go to postgresql.conf, so ALTER SYSTEM
    overrides them after a restart. Without `fsync` it survives `kill`, but not a power cut.
    With `password` every connection must give it (scram), otherwise all are trusted. Its directory
    is made at `place`, else where temporary files are.
    """

    def __init__(
        self,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        fsync: bool = False,
        password: str | None = None,
        place: Path | None = None,
    ) -> None:
        self._account = server_account()
        self._binaries = runnable_by(find_binaries(bin_dir), self._account)
        self._settings = {**_SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})}
        self._password = password
        self._place = place
        self._home: Path | None = None
        self._port: int | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._maker_pid = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"port {self._port}" if self.pid is not None else "not running"
        return f"EmbeddedPostgres({self.version}, {state})"

    @property
    def version(self) -> int:
        """The major version: 15, 18."""
        return self._binaries.version

    @property
    def bin_dir(self) -> Path:
        """Where psql, pgbench and the like of this server are, as far as it has them."""
        return self._binaries.bin_dir

    @property
    def port(self) -> int:
        """The TCP port, the same as long as the data directory lives."""
        return self._made(self._port)

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None while it is stopped."""
        if self._server is None or self._server.poll() is not None:
            return None
        return self._server.pid

    @property
    def data_dir(self) -> Path:
        """The server's PGDATA."""
        return self._made(self._home) / "data"

    @property
    def log_path(self) -> Path:
        """What the server wrote since it was made."""
        return self._made(self._home) / "log"

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """A URL for this server, with the password if it has one (the superuser's)."""
        secret = "" if self._password is None else ":" + quote(self._password, safe="")
        login = quote(user, safe="") + secret
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Start, and return when the server takes connections; the first time, make it.

        Raises:
            EmbeddedServerFailed: it does not start; the message ends with its last log lines.
        """
        if self.pid is not None:
            return
        if self._home is not None:
            self._launch(self.port)
            return
        try:
            self._make()
            self._launch_on_a_free_port()
        except BaseException:
            self.close()
            raise

    def stop(self, mode: StopMode = "fast", deadline_seconds: float = 60) -> None:
        """Stop the server and keep its data. `smart` waits for clients, `fast` ends them.

        Raises:
            EmbeddedServerFailed: it still runs after the deadline.
        """
        if self._server is None:
            return
        if self._server.poll() is None:
            self._server.send_signal(_SIGNALS[mode])
        try:
            self._server.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(
                f"still running {deadline_seconds:g} s after a {mode} shutdown began",
                "stop its clients, or use kill()",
            ) from None
        self._server = None

    def kill(self) -> None:
        """End it as a crash does: no checkpoint, clients cut off; the next start recovers."""
        # SIGQUIT, not SIGKILL: the children of a postmaster that vanished may hold the shared
        # memory for a while, and no new server starts until they have gone.
        self.stop("immediate")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start again on the same port."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove everything it had. Safe to repeat."""
        # A forked child inherits this object and the atexit list, but not the server.
        if os.getpid() != self._maker_pid:
            return
        try:
            self.kill()
        except EmbeddedServerFailed:
            assert self._server is not None
            self._server.kill()
            self._server.wait()
            self._server = None
        if self._guard is not None:
            dismiss(self._guard)
            self._guard = None
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        atexit.unregister(self.close)

    def _make(self) -> None:
        self._home = private_directory(self._account, "penstock-pg-", self._place)
        atexit.register(self.close)
        self._guard = watch_over(self._home)
        # initdb is half the start: no fsync, and no search for this machine's locale and zone.
        command = [self._binaries.program("initdb"), "-D", str(self.data_dir), "-U", "postgres"]
        command += ["--locale=C", "--encoding=UTF8", "--no-sync"]
        secret = self._home / "password"
        if self._password is None:
            command += ["-A", "trust"]
        else:
            secret.touch(mode=0o600)
            secret.write_text(self._password + "\n", encoding="utf-8")
            self._account.own(secret)
            command += ["-A", "scram-sha-256", f"--pwfile={secret}"]
        done = self._account.run(command, self._home)
        if done.returncode != 0:
            said = _last_lines(done.stderr or done.stdout)
            raise self._failure(f"initdb failed: {said}", "fix what initdb names")
        secret.unlink(missing_ok=True)
        with (self.data_dir / "postgresql.conf").open("a", encoding="utf-8") as config:
            for name, value in self._settings.items():
                config.write(f"{name} = '{_quoted(value)}'\n")

    def _launch_on_a_free_port(self) -> None:
        for _ in range(5):
            self._port = free_port()
            try:
                self._launch(self._port)
            except EmbeddedServerFailed as failure:
                # Someone else took the port between our check and the server's.
                if "Address already in use" not in failure.what:
                    raise
            else:
                return
        raise self._failure("five free ports in a row were taken by others", "try again")

    def _launch(self, port: int) -> None:
        with self.log_path.open("ab") as log:
            written_before = log.tell()
            # A session of its own, so that Ctrl-C on the terminal reaches only penstock, which
            # then stops its servers in the right order.
            self._server = subprocess.Popen(  # noqa: S603
                [self._binaries.program("postgres"), "-D", str(self.data_dir), "-p", str(port)],
                cwd=self.data_dir,
                env=environment(),
                user=self._account.uid,
                group=self._account.gid,
                extra_groups=None if self._account.uid is None else [],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while not self._ready():
            ended = self._server.poll() is not None
            if not ended and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            with self.log_path.open("rb") as log:
                log.seek(written_before)
                said = _last_lines(log.read().decode(errors="replace"))
            self.kill()
            what = "ended while starting" if ended else "not ready after 60 s"
            raise self._failure(f"{what}, its log says: {said}", "fix what the log names")

    def _ready(self) -> bool:
        """Whether our postmaster has written its last line, as pg_ctl -w asks it."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        # After a crash the file of the one before may still be there.
        ours = self._server is not None and lines[:1] == [str(self._server.pid)]
        return ours and len(lines) > 7 and lines[7].strip() in ("ready", "standby")

    def _made(self, part: Part | None) -> Part:
        if part is None:
            raise self._failure("there is no server yet, or no longer", "call start() first")
        return part

    def _failure(self, what: str, do: str) -> EmbeddedServerFailed:
        return EmbeddedServerFailed(what, f"embedded Postgres {self.version}", do)


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def _last_lines(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-6:])
