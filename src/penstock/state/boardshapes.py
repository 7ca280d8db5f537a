"""Documents about shapes of tables on a board, for halves that share no disk.

A line is a value of its own, numbered within a generation. Fewer lines that take the place of all are the next
generation: it is there before the value that names it is, and the former one goes after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import LogGone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.log.contract import Board


class BoardLines:
    """The lines of one source. Written by the one process that captures it, which holds that role."""

    is_near = False

    def __init__(self, board: Board, prefix: str) -> None:
        self._board = board
        self._prefix = prefix
        self._generation = -1
        self._next = 0  # the line to be read
        self._size = 0
        self.is_open = False

    def open_for_writing(self) -> None:
        """Remove what a crash has left of generations that are not the present one."""
        self._board.sync()
        wanted = f"{self._prefix}/{self._named():06d}/"
        for key in self._board.keys(f"{self._prefix}/"):
            if key != self._pointer and not key.startswith(wanted):
                self._board.put(key, None)
        self._size = sum(map(len, self.read_all()))
        self.is_open = True

    def append(self, line: bytes) -> None:
        """Post one line after the last one."""
        generation = self._named()
        number = len(self._board.keys(f"{self._prefix}/{generation:06d}/"))
        self._board.put(self._key(generation, number), line)
        self._size += len(line)

    def size_bytes(self) -> int:
        """How long all lines are."""
        return self._size

    def replace(self, lines: Sequence[bytes]) -> None:
        """Post another generation, then that it counts."""
        former = self._named()
        for number, line in enumerate(lines):
            self._board.put(self._key(former + 1, number), line)
        self._board.put(self._pointer, str(former + 1).encode())
        for key in self._board.keys(f"{self._prefix}/{former:06d}/"):
            self._board.put(key, None)
        self._size = sum(map(len, lines))

    def read_all(self) -> list[bytes]:
        """Every line of the present generation."""
        self._board.sync()
        while True:
            generation = self._named()
            found = self._whole(generation)
            if self._named() == generation:
                return found

    def read_new(self) -> tuple[bool, list[bytes]]:
        """What was added, or all of it where another generation counts."""
        self._board.sync()
        while True:
            generation = self._named()
            begin = self._next if generation == self._generation else 0
            found = self._lines(generation, begin) if begin else self._whole(generation)
            if self._named() == generation:  # else its lines may have gone while they were read
                break
        is_another = self._generation not in (-1, generation)
        self._generation, self._next = generation, begin + len(found)
        return is_another, found

    def close(self) -> None:
        """Add no more."""
        self.is_open = False

    def _whole(self, generation: int) -> list[bytes]:
        """Every line of a generation.

        Raises:
            LogGone: one is missing, and later ones are there.
        """
        keys = self._board.keys(f"{self._prefix}/{generation:06d}/")
        found = self._lines(generation, 0)
        if len(found) < len(keys) and self._named() == generation:
            raise LogGone(
                f"line {len(found)} of the shapes of tables is gone, and {len(keys)} are there",
                self._prefix,
                "take limits and retention off what log.state_topic or log.bucket names; then penstock teardown"
                " and init to begin anew",
            )
        return found

    def _lines(self, generation: int, begin: int) -> list[bytes]:
        found: list[bytes] = []
        while (posted := self._board.get(self._key(generation, begin + len(found)))) is not None:
            found.append(posted.value)
        return found

    @property
    def _pointer(self) -> str:
        return f"{self._prefix}/generation"

    def _named(self) -> int:
        posted = self._board.get(self._pointer)
        return 0 if posted is None else int(posted.value)

    def _key(self, generation: int, number: int) -> str:
        return f"{self._prefix}/{generation:06d}/{number:09d}"
