"""What the brokers of tests have in common: a program in a directory of its own, started, stopped and killed by its pid."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fix_machine import memory_disk
from fix_wait import wait_until

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Sequence

_END_SECONDS = 60


class BrokerProcess(ABC):
    """One broker. `stop` and `start` again keep its ports and its data; `kill` is a power cut."""

    name: str
    start_seconds: float

    def __init__(self) -> None:
        self.directory = Path(
            tempfile.mkdtemp(prefix=f"penstock-{self.name.lower()}-", dir=memory_disk())
        )
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What is run."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it can be used."""

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._lives_and_answers, self.start_seconds, f"{self.name} to answer")

    def _lives_and_answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.printed[-2000:]
        return self.answers()

    @property
    def printed(self) -> str:
        """What it has said of itself."""
        return (self.directory / "log").read_text(errors="replace")

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.terminate()
            self.gone()

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP has it keep its connections and not answer."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without notice."""
        if self._process is not None:
            self._process.kill()
            self.gone()

    def gone(self) -> None:
        """It is ending: wait for that."""
        process, self._process = self._process, None
        assert process is not None
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_SECONDS)
            raise

    def remove(self) -> None:
        """Kill it, and leave nothing."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Started; gone in the end, whatever happens."""
        try:
            self.start()
            yield self
        finally:
            self.remove()
