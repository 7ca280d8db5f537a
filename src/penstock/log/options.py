"""What a person may say about any kind of log. Knows no kind: each adds options of its own."""

from typing import Annotated, Any, Self

from pydantic import PlainValidator, model_validator

from penstock.encryption import Keyring, are_keys
from penstock.options import ByteCount, LocalPath, Options, wanted
from penstock.secret import Secret


def _read_keys(given: Any) -> Secret:
    if isinstance(given, Secret):
        return given
    if not isinstance(given, str) or not are_keys(given):
        # Never beside what was found.
        raise wanted("64 hexadecimal digits (openssl rand -hex 32) from a variable: ${NAME}")
    return Secret(given)


class LogOptions(Options):
    """Where the log is kept, how much of it may wait for the sinks, and whether it is encrypted."""

    kind: str
    retain_bytes: ByteCount = 10_000_000_000
    encrypt: bool = False
    key: Annotated[Secret, PlainValidator(_read_keys)] | None = None
    key_file: LocalPath | None = None

    @model_validator(mode="after")
    def _one_place_of_keys(self) -> Self:
        if self.key is not None and self.key_file is not None:
            raise wanted("left out where key is given: there is one place of keys", "key_file")
        if self.encrypt and self.key is None and self.key_file is None:
            raise wanted("true with a key: key: ${NAME}, or key_file: PATH", "encrypt")
        return self

    def keyring(self) -> Keyring:
        """The keys: for what is written from now on, and for what was written before."""
        return Keyring(self.key, self.key_file, encrypts=self.encrypt)
