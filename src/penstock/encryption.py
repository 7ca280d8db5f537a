"""Encryption of rows that penstock keeps on disk or hands to a broker: slices of the log, documents on their way.

AES-256-GCM of `cryptography`. Each `Encryptor` draws a salt of 128 random bits, and has a key of its own, derived
by HKDF from the person's key and that salt; its nonces are a counter. So no nonce comes twice under one key, whatever
is killed: nothing has to be remembered from one process to the next. What is encrypted says itself by which key
(`Mark`), so that old and new keys, and what was written before encryption was asked for, can lie side by side.

Must not know what is encrypted, nor where it lies.
"""

from __future__ import annotations

import functools
import hmac
import os
import re
import stat
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import LogKeyMissing, LogKeyUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from penstock.secret import Secret

TAG_BYTES = 16
_KEY = re.compile(r"[0-9a-fA-F]{64}")
_MAKE_ONE = "make one: openssl rand -hex 32"

# magic, zero, bytes that follow, key id, salt, number
_FRAME = struct.Struct("<4sIQ8s16sQ")
FRAME_MAGIC = b"PSE1"
FRAME_HEADER_BYTES = _FRAME.size


class NotAuthentic(Exception):
    """Bytes that were not encrypted with this key, or were changed since."""


class Mark(NamedTuple):
    """By what something is encrypted: which key, the salt of its encryptor, and the number of the message."""

    key_id: str
    salt: str
    number: int


class Encryptor:
    """Encrypts with one salt. For one thread; made anew by whoever begins to write."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._key_id = _id_of(key)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._salt = os.urandom(16).hex()
        self._number = 0

    def next_mark(self) -> Mark:
        """A mark that nothing else has."""
        if self._pid != os.getpid():
            self._begin()  # forked: the other one goes on with the same numbers
        self._number += 1
        return Mark(self._key_id, self._salt, self._number)

    def encrypt(self, mark: Mark, plain: bytes | memoryview, bound: bytes) -> bytes:
        """The bytes, encrypted, and a tag for them and for what they are bound to; once for each mark."""
        return _cipher(self._key, mark.salt).encrypt(_nonce(mark), plain, bound)

    def frame(self, plain: bytes | memoryview) -> bytes:
        """Bytes that `Keyring.unframe` reads; `frame_bytes` says from their beginning how many they are."""
        mark = self.next_mark()
        size = len(plain) + TAG_BYTES
        header = _FRAME.pack(
            FRAME_MAGIC, 0, size, bytes.fromhex(mark.key_id), bytes.fromhex(mark.salt), mark.number
        )
        return header + self.encrypt(mark, plain, header)


class Keyring:
    """The keys that a person gave, the one in use first; those behind it are for what was written before.

    Pickled for Spark's tasks: as the path of the file, or as a name in Spark's vault.
    """

    def __init__(
        self, given: Secret | None = None, path: Path | None = None, *, encrypts: bool = False
    ) -> None:
        self._given = given
        self._path = path
        self.encrypts = encrypts

    def check(self) -> None:
        """See that the keys can be used.

        Raises:
            LogKeyUnusable: they cannot.
        """
        for key in self._keys():
            _cipher(key, _id_of(key))

    def encryptor(self) -> Encryptor | None:
        """What encrypts; None where nothing new is to be.

        Raises:
            LogKeyUnusable: the key cannot be read.
        """
        return Encryptor(self._keys()[0]) if self.encrypts else None

    @property
    def key_id(self) -> str | None:
        """Which key new bytes are encrypted with; None: with none."""
        return _id_of(self._keys()[0]) if self.encrypts else None

    def require(self, key_id: str | None, where: str) -> None:
        """See that a key is here, before anything is begun that needs it.

        Raises:
            LogKeyMissing: it is not.
            LogKeyUnusable: the keys cannot be read.
        """
        if key_id is not None and all(_id_of(key) != key_id for key in self._keys()):
            raise _missing(key_id, where, len(self._keys()))

    def decrypt(self, mark: Mark, sealed: bytes | memoryview, bound: bytes, where: str) -> bytes:
        """What was encrypted.

        Raises:
            LogKeyMissing: its key is not here.
            NotAuthentic: it is not what was encrypted.
        """
        from cryptography.exceptions import InvalidTag

        keys = self._keys()
        for key in keys:
            if _id_of(key) == mark.key_id:
                try:
                    return _cipher(key, mark.salt).decrypt(_nonce(mark), sealed, bound)
                except InvalidTag:
                    raise NotAuthentic from None
        raise _missing(mark.key_id, where, len(keys))

    def unframe(self, frame: bytes | memoryview, where: str) -> bytes:
        """What a frame holds.

        Raises:
            LogKeyMissing: its key is not here.
            NotAuthentic: it is no frame, or was changed.
        """
        if len(frame) < FRAME_HEADER_BYTES or frame_bytes(frame) != len(frame):
            raise NotAuthentic
        header, sealed = frame[:FRAME_HEADER_BYTES], frame[FRAME_HEADER_BYTES:]
        *_, key_id, salt, number = _FRAME.unpack(header)
        return self.decrypt(Mark(key_id.hex(), salt.hex(), number), sealed, bytes(header), where)

    def _keys(self) -> Sequence[bytes]:
        if self._path is not None:
            return _read_keys(str(self._path))
        return () if self._given is None else _parsed(self._given.reveal())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._given, self._path, self.encrypts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyring) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self._given, self._path, self.encrypts))


NO_KEYS = Keyring()
"""For what is not encrypted."""


def frame_bytes(begin: bytes | memoryview) -> int | None:
    """How long the frame is that begins here; None where none does."""
    if bytes(begin[:4]) != FRAME_MAGIC or len(begin) < FRAME_HEADER_BYTES:
        return None
    return FRAME_HEADER_BYTES + int(_FRAME.unpack_from(begin)[2])


def are_keys(text: str) -> bool:
    """Whether a text is one key or several."""
    words = text.split()
    return bool(words) and all(_KEY.fullmatch(word) for word in words)


def _unpickled(given: Secret | None, path: Path | None, encrypts: bool) -> Keyring:
    return Keyring(given, path, encrypts=encrypts)


def _parsed(text: str) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(word) for word in text.split())


@functools.lru_cache(maxsize=16)
def _read_keys(path: str) -> tuple[bytes, ...]:
    """The keys in a file, read once by each process."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LogKeyUnusable(
            f"the file of keys cannot be read: {error.strerror}",
            path,
            "put it there, readable for penstock's user alone; on a cluster on every executor's machine, too",
        ) from None
    with open(fd) as file:  # noqa: PTH123 - of a descriptor
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        try:
            text = file.read(64 * 1024)
        except (OSError, ValueError):
            text = ""
    if mode & 0o077:
        raise LogKeyUnusable(
            f"the file of keys has mode {mode:04o}, wanted 0600: others could read it",
            path,
            f"chmod 600 {path}; if others had access to it, use a new key",
        )
    if not are_keys(text):
        raise LogKeyUnusable(
            "the file holds something else than keys, wanted 64 hexadecimal digits, 32 random bytes, on each line",
            path,
            _MAKE_ONE,
        )
    return _parsed(text)


def _missing(key_id: str, where: str, count: int) -> LogKeyMissing:
    given = "no key is given" if not count else f"it is not among the {count} given"
    return LogKeyMissing(
        f"encrypted with key {key_id}: {given}",
        where,
        "give that key in log.key or log.key_file, behind the one in use; nothing was changed",
    )


@functools.lru_cache(maxsize=64)
def _id_of(key: bytes) -> str:
    """A name for a key, which says nothing about it."""
    return hmac.digest(key, b"penstock key id", "sha256")[:8].hex()


@functools.lru_cache(maxsize=64)
def _cipher(key: bytes, salt: str) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise LogKeyUnusable(
            "log.encrypt needs the package cryptography, which is not installed",
            "log.encrypt",
            "pip install 'penstock[crypto]', also where Spark's executors run",
        ) from None
    derived = HKDF(SHA256(), 32, bytes.fromhex(salt), b"penstock rows at rest")
    return AESGCM(derived.derive(key))


def _nonce(mark: Mark) -> bytes:
    return mark.number.to_bytes(12, "big")
