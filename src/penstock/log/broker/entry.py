"""One entry of a log on a broker, as bytes.

    mark | length of JSON u32 | JSON | header and meta of the slice | its body, where it is small

An entry that is larger than a message lies in pieces itself; then only these are named.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

from penstock.log.slice import SliceHead, damaged, decode_head
from penstock.lsn import Lsn

_MARK = b"PSE1"
_PREFIX = struct.Struct("<4sI")


@dataclass(frozen=True)
class Entry:
    """What stands in one place of the row. Without a head, the log begins here, anew or for the first time."""

    log_id: str
    base_lsn: Lsn  # where everything before it ends
    head: SliceHead | None = None
    raw: bytes = b""  # header and meta, then the body where it is small
    body_offset: int = 0  # where in `raw` the body begins
    pieces: tuple[int, ...] = ()  # where the body lies, if not here
    spool: str = ""  # of which it is a part
    owner: str = ""  # whose log it is; entries of earlier versions say so only where it begins
    elsewhere: tuple[int, ...] = field(default=(), compare=False)  # where the entry itself lies

    @property
    def end_lsn(self) -> Lsn | None:
        """Where everything up to it ends; None of a part, which does not count."""
        if self.head is None:
            return self.base_lsn
        return None if self.is_part else self.head.end_lsn

    @property
    def is_part(self) -> bool:
        """Whether more of its transaction follows."""
        return self.head is not None and (self.head.kind.name == "PART" or bool(self.spool))

    @property
    def inline(self) -> bytes | None:
        """The body, where it lies here."""
        return None if self.pieces else self.raw[self.body_offset :]

    def encode(self) -> bytes:
        """As bytes."""
        about = {"log": self.log_id, "base": int(self.base_lsn)}
        optional = {"pieces": list(self.pieces), "spool": self.spool, "owner": self.owner}
        return _framed(
            {**about, **{key: value for key, value in optional.items() if value}}, self.raw
        )

    @classmethod
    def decode(cls, data: bytes, where: str) -> Entry:
        """From bytes.

        Raises:
            LogError: these are none.
        """
        try:
            mark, length = _PREFIX.unpack_from(data)
            about = json.loads(data[_PREFIX.size : _PREFIX.size + length])
            if mark != _MARK:
                raise damaged(where, "no entry of a log")
            if "elsewhere" in about:
                return cls("", Lsn(0), elsewhere=tuple(about["elsewhere"]))
            raw = data[_PREFIX.size + length :]
            found = decode_head(raw, where) if raw else None
            if raw and found is None:
                raise damaged(where, "an entry is cut short")
            head, body_offset = found or (None, 0)
            return cls(
                about["log"],
                Lsn(about["base"]),
                head,
                raw,
                body_offset,
                tuple(about.get("pieces", ())),
                about.get("spool", ""),
                about.get("owner", ""),
            )
        except (struct.error, ValueError, KeyError, TypeError):
            raise damaged(where, "no entry of a log") from None


def entry_elsewhere(pieces: list[int]) -> bytes:
    """What stands for an entry that lies in pieces."""
    return _framed({"elsewhere": pieces}, b"")


def _framed(about: dict[str, object], raw: bytes) -> bytes:
    text = json.dumps(about, separators=(",", ":")).encode()
    return b"".join((_PREFIX.pack(_MARK, len(text)), text, raw))
