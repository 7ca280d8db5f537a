"""One slice: a checksummed run of whole pgoutput messages, and its header. Pure bytes.

A slice is self-contained: the Relation messages its rows need come first. It is one of

    WHOLE     whole transactions, one or many
    PART      a part of one transaction too big for one slice; more follow, `meta.part` numbers them
    LAST      the last part of such a transaction
    STREAMED  a transaction that arrived in pieces before its commit; the pieces lie in a spool file
    MARKER    nothing happened up to `end_lsn`

    header | meta, JSON | message length u32 * message_count | messages

What stands after meta may be encrypted, with a tag behind it: then `meta.cipher` says by what, and the tag holds for
header and meta, too. Checksums are those of the bytes as they are stored, so that damage is found without a key.

Must not know what a message means, nor which file it lies in.
"""

from __future__ import annotations

import enum
import hashlib
import json
import struct
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.encryption import TAG_BYTES, Mark
from penstock.errors import LogError
from penstock.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from penstock.encryption import Encryptor

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
    bound: bytes = b""  # a digest of header and meta as they are stored, where a tag holds for them

    @property
    def body_bytes(self) -> int:
        """How many bytes follow header and meta."""
        return 4 * self.message_count + self.data_bytes + (TAG_BYTES if self.mark else 0)

    @property
    def mark(self) -> Mark | None:
        """By what it is encrypted; None: it is not."""
        found = self.meta.get("cipher")
        return None if found is None else Mark(*found)


def encode_slice(
    head: SliceHead,
    data: bytes,
    lengths: npt.NDArray[np.uint32],
    encryptor: Encryptor | None = None,
) -> bytes:
    """The slice as it is stored; counts and checksums of `head` are filled in here."""
    mark = None if encryptor is None else encryptor.next_mark()
    of_slice = head.meta if mark is None else {**head.meta, "cipher": mark}
    meta = json.dumps(of_slice, separators=(",", ":")).encode()
    body = b"".join((lengths.astype("<u4").tobytes(), data))
    fields: tuple[Any, ...] = (
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
    )
    if encryptor is not None and mark is not None:
        body = encryptor.encrypt(mark, body, _bound(fields, meta))
    fields = (*fields, zlib.crc32(body))
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
    of_slice = json.loads(meta)
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
        meta=of_slice,
        bound=_bound(values[:-2], meta) if "cipher" in of_slice else b"",
    )
    return head, HEADER_BYTES + meta_bytes


def _bound(fields: tuple[Any, ...], meta: bytes) -> bytes:
    """What the tag of an encrypted slice holds for beside its messages: all but the checksums."""
    return hashlib.sha256(_HEADER.pack(*fields, 0, 0) + meta).digest()


def meta_bytes_of(raw: bytes) -> int:
    """How many bytes of meta a header announces, so that a reader knows how much more to fetch."""
    return int(_HEADER.unpack_from(raw)[4])


def streamed_heads(commit: SliceHead, parts: Sequence[SliceHead]) -> list[SliceHead]:
    """The heads of a streamed transaction's slices, each with what only its commit knew."""
    marks = {"schema": commit.meta["schema"]} if "schema" in commit.meta else {}
    return [
        replace(
            part,
            kind=SliceKind.LAST if number == len(parts) else SliceKind.PART,
            end_lsn=commit.end_lsn,
            first_commit_lsn=commit.first_commit_lsn,
            last_commit_lsn=commit.last_commit_lsn,
            committed_at=commit.committed_at,
            xid=commit.xid,
            carries_xids=True,
            meta={**part.meta, **(marks if number == len(parts) else {})},
        )
        for number, part in enumerate(parts, 1)
    ]


def damaged(where: str, what: str) -> LogError:
    """The error of a damaged log, with the way out that loses nothing."""
    return LogError(
        what,
        where,
        "stop penstock and delete the log directory, topic or stream; the slot still holds all that"
        " no sink has, and sends it again",
    )
