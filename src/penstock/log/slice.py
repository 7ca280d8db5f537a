"""One slice: a checksummed run of whole pgoutput messages, and its header. Pure bytes.

A slice is self-contained: the Relation messages its rows need come first. It is one of

    WHOLE     whole transactions, one or many
    PART      a part of one transaction too big for one slice; more follow, `meta.part` numbers them
    LAST      the last part of such a transaction
    STREAMED  a transaction that arrived in pieces before its commit; the pieces lie in a spool file
    MARKER    nothing happened up to `end_lsn`

    header | meta, JSON | message length u32 * message_count | messages

Must not know what a message means, nor which file it lies in.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import LogError
from penstock.lsn import ZERO, Lsn

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAGIC = b"PSL1"
_HEADER = struct.Struct("<4sBBHIIQQQQqQIII")
HEADER_BYTES = _HEADER.size


class SliceKind(enum.IntEnum):
    """What a slice holds; see the module's text."""

    WHOLE = 1
    PART = 2
    LAST = 3
    STREAMED = 4
    MARKER = 5


_KINDS = frozenset(SliceKind)


@dataclass(frozen=True)
class SliceHead:
    """What a reader learns of a slice without reading its messages."""

    kind: SliceKind
    end_lsn: Lsn  # end of the last commit; a slot acknowledged up to here never sends these again
    first_commit_lsn: Lsn = ZERO
    last_commit_lsn: Lsn = ZERO
    committed_at: int = 0  # of the last commit, source's clock, microseconds since 2000-01-01
    xid: int = 0  # of a PART, LAST or STREAMED transaction
    first_ordinal: int = 0  # of the first row, where a transaction goes on from an earlier part
    carries_xids: bool = False  # each message names its subtransaction, as streamed ones do
    meta: dict[str, Any] = field(default_factory=dict)
    message_count: int = 0
    data_bytes: int = 0
    body_crc: int = 0

    @property
    def body_bytes(self) -> int:
        """How many bytes follow header and meta."""
        return 4 * self.message_count + self.data_bytes


def encode_slice(head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> bytes:
    """The slice as it stands in a file; counts and checksums of `head` are filled in here."""
    meta = json.dumps(head.meta, separators=(",", ":")).encode()
    body = b"".join((lengths.astype("<u4").tobytes(), data))
    body_crc = zlib.crc32(body)
    fields = (
        MAGIC,
        int(head.kind),
        int(head.carries_xids),
        0,
        len(meta),
        len(lengths),
        len(data),
        head.first_commit_lsn,
        head.last_commit_lsn,
        head.end_lsn,
        head.committed_at,
        head.first_ordinal,
        head.xid,
        body_crc,
    )
    unsigned = _HEADER.pack(*fields, 0)
    header_crc = zlib.crc32(meta, zlib.crc32(unsigned))
    return b"".join((_HEADER.pack(*fields, header_crc), meta, body))


def decode_head(raw: bytes | memoryview, where: str) -> tuple[SliceHead, int] | None:
    """The head at the start of `raw` and the size of header and meta; None when `raw` is too short.

    Raises:
        LogError: these bytes are not a slice's header.
    """
    if len(raw) < HEADER_BYTES:
        return None
    values = _HEADER.unpack_from(raw)
    meta_bytes = values[4]
    # Zeros after the mark: no text has them, so no row of a table can be taken for a header.
    if values[0] != MAGIC or values[3] != 0:
        raise damaged(where, "no slice begins here")
    if len(raw) < HEADER_BYTES + meta_bytes:
        return None
    meta = bytes(raw[HEADER_BYTES : HEADER_BYTES + meta_bytes])
    unsigned = _HEADER.pack(*values[:-1], 0)
    if zlib.crc32(meta, zlib.crc32(unsigned)) != values[-1]:
        raise damaged(where, "the checksum of the slice's header differs")
    if values[1] not in _KINDS:
        raise damaged(where, f"a slice of kind {values[1]}, which this version does not know")
    head = SliceHead(
        kind=SliceKind(values[1]),
        carries_xids=bool(values[2]),
        message_count=values[5],
        data_bytes=values[6],
        first_commit_lsn=Lsn(values[7]),
        last_commit_lsn=Lsn(values[8]),
        end_lsn=Lsn(values[9]),
        committed_at=values[10],
        first_ordinal=values[11],
        xid=values[12],
        body_crc=values[13],
        meta=json.loads(meta),
    )
    return head, HEADER_BYTES + meta_bytes


def meta_bytes_of(raw: bytes) -> int:
    """How many bytes of meta a header announces, so that a reader knows how much more to fetch."""
    return int(_HEADER.unpack_from(raw)[4])


def damaged(where: str, what: str) -> LogError:
    """The error of a damaged log, with the way out that loses nothing."""
    return LogError(
        what,
        where,
        "stop penstock and delete the log directory; the slot still holds all that no sink has, "
        "and sends it again",
    )
