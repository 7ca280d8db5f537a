"""Which topics or streams the logs of a pipeline are, and what may be wrong with them: the same for all brokers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from penstock.brokers.names import fill
from penstock.errors import (
    LogError,
    LogRefused,
    LogUnreachable,
    PenstockError,
    StateOfAnother,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.log.broker.log import BrokerLog
    from penstock.log.contract import Board, LogOwner

_log = logging.getLogger(__name__)


class Places(ABC):
    """Those of one pipeline file. Making it reaches nothing."""

    unit: ClassVar[str]
    """What a log is there, which is also what the option is called that names it: topic or stream."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def name_of(self, owner: LogOwner) -> str:
        """The topic or stream of a source."""
        return fill(self._pattern, pipeline=owner.pipeline, source=owner.source_id)

    @abstractmethod
    def log_of(self, owner: LogOwner) -> BrokerLog:
        """The log of one source."""

    @abstractmethod
    def board_of(self, pipeline: str) -> Board:
        """The board of one pipeline; the same for all in this process."""

    @abstractmethod
    def _delete(self, name: str) -> bool:
        """Delete a topic or stream; whether it was there."""

    @abstractmethod
    def _risks(self, name: str, place: str) -> Iterator[PenstockError]:
        """What may lose or delete what is in a topic or stream, or will be. Changes nothing."""

    @abstractmethod
    def _board_risks(self, pipeline: str) -> Iterator[PenstockError]:
        """The same of the board."""

    def _name_problems(self, names: Sequence[str], pipeline: str) -> Iterator[PenstockError]:
        """Names that the broker does not take; nothing else is asked then."""
        del names, pipeline
        yield from ()

    def _owner_problems(self, owners: Sequence[LogOwner]) -> Iterator[PenstockError]:
        """Logs and boards that are another pipeline's; what else is wrong with them is found by asking for it."""
        for owner in owners:
            try:
                self.log_of(owner).require_own()
            except StateOfAnother as error:
                yield error
            except LogError as error:
                _log.debug("%s", error)
        try:
            self.board_of(owners[0].pipeline).get("")
        except StateOfAnother as error:
            yield error
        except LogError as error:
            _log.debug("%s", error)

    def forget(self, owners: Sequence[LogOwner]) -> list[str]:
        """Delete the logs of sources; which.

        Raises:
            StateOfAnother: one is another pipeline's, which has the same name for it.
        """
        for owner in owners:
            self._require_own(owner)
        names = [self.name_of(owner) for owner in owners]
        return [f"{self.unit} {name}" for name in names if self._delete(name)]

    def _require_own(self, owner: LogOwner) -> None:
        try:
            self.log_of(owner).require_own()
        except (StateOfAnother, LogUnreachable):
            raise
        except LogError as error:  # what cannot be read can be deleted
            _log.debug("%s", error)

    def problems(self, owners: Sequence[LogOwner]) -> list[PenstockError]:
        """Everything that can be known before the start. Changes nothing."""
        names = [self.name_of(owner) for owner in owners]
        if len(set(names)) < len(names):
            return [
                LogRefused(
                    f"{len(names)} sources have one {self.unit}, wanted one for each",
                    f"log.{self.unit} {self._pattern}",
                    f"put {{source}} into log.{self.unit}",
                )
            ]
        pipeline = owners[0].pipeline
        try:
            if unfit := list(self._name_problems(names, pipeline)):
                return unfit
            found = [each for name in names for each in self._risks(name, f"{self.unit} {name}")]
            return [*found, *self._board_risks(pipeline), *self._owner_problems(owners)]
        except PenstockError as error:
            return [error]
