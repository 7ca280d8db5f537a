"""Encryption at rest: nothing readable on disk, no nonce twice, keys that are missing, wrong, or new."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from fix_log import SmallLog, keyring, texts
from penstock import vault
from penstock.changes.documents import DOCUMENTS
from penstock.encryption import NO_KEYS, Encryptor, Keyring, Mark, NotAuthentic
from penstock.errors import LogError, LogKeyMissing, LogKeyUnusable
from penstock.log.contract import LogOwner
from penstock.log.files.keys import unfit_segments
from penstock.log.files.segment import key_of, list_segments, walk
from penstock.log.files.writer import FilesWriter
from penstock.log.registry import kind_of
from penstock.log.slice import SliceHead, SliceKind
from penstock.lsn import Lsn
from penstock.sinks.documents.parked import Parked
from penstock.sinks.documents.parts import Cursor, PartWriter, message_of, read_part, read_some

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = b"4929-canary-5553"
KEY = "0c" * 32


def content_of(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def marks_of(directory: Path) -> list[Mark]:
    files = [*directory.glob("*.segment"), *directory.glob("*.spool")]
    return [ref.head.mark for path in files for ref in walk(path) if ref.head.mark is not None]


def append_canary(log: SmallLog, end_lsn: int) -> None:
    data = CANARY * 3
    log.writer.append(
        SliceHead(SliceKind.WHOLE, Lsn(end_lsn), Lsn(end_lsn), Lsn(end_lsn)),
        data,
        np.array([len(CANARY)] * 3, np.uint32),
    )


@pytest.fixture
def encrypted(tmp_path: Path, no_sync: None) -> Iterator[SmallLog]:
    made = SmallLog(tmp_path / "log", keyring=keyring("a"))
    yield made
    made.writer.close()


def test_messages_are_read_back_and_stand_nowhere_in_segments_and_spools(encrypted: SmallLog):
    append_canary(encrypted, 8)
    spool = encrypted.writer.begin_spool(7, Lsn(8))
    head = SliceHead(SliceKind.PART, Lsn(0), carries_xids=True)
    spool.append(head, CANARY, np.array([len(CANARY)], np.uint32))
    spool.seal()
    named = {"spool": spool.name, "parts": 1, "aborted": []}
    commit = SliceHead(SliceKind.STREAMED, Lsn(16), Lsn(16), Lsn(16), xid=7, meta=named)
    encrypted.writer.append(commit, b"", np.zeros(0, np.uint32))

    found = [ref.read() for ref in encrypted.read()]

    assert [data for data, _ in found] == [CANARY * 3, CANARY]
    assert found[0][1].tolist() == [len(CANARY)] * 3
    assert CANARY[:6] not in content_of(encrypted.directory)


def test_no_mark_comes_twice_though_every_writer_is_killed(encrypted: SmallLog):
    for end in range(1, 40):
        encrypted.whole(end)
        if end % 3 == 0:
            encrypted.streamed(end)
        if end % 5 == 0:
            encrypted.reopen()

    marks = marks_of(encrypted.directory)

    assert len(marks) > 60
    assert len(set(marks)) == len(marks)
    assert len({mark.salt for mark in marks}) == 8  # one for each writer


def test_encryptor_that_was_forked_goes_on_with_a_salt_of_its_own():
    encryptor = Encryptor(bytes(32))
    before = encryptor.next_mark()
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(out, encryptor.next_mark().salt.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(out)
    with open(into) as pipe:
        in_child = pipe.read()

    assert encryptor.next_mark() == before._replace(number=2)
    assert len(in_child) == 32
    assert in_child != before.salt


def test_slice_that_somebody_changed_with_its_checksums_is_refused(encrypted: SmallLog):
    encrypted.whole(8)
    encrypted.whole(16)
    first, second = encrypted.read()
    moved = type(first)(first.head, second.locator, (), encrypted.keyring)
    forged_head = SliceHead(**{**vars(first.head), "body_crc": second.head.body_crc})

    with pytest.raises(LogError, match="not what was encrypted"):
        type(first)(forged_head, moved.locator, (), encrypted.keyring).read()


def test_header_is_bound_to_its_messages(encrypted: SmallLog):
    encrypted.whole(8)
    [ref] = encrypted.read()
    assert ref.head.mark is not None

    with pytest.raises(NotAuthentic):
        encrypted.keyring.decrypt(ref.head.mark, ref.stored(), b"another header", "here")


@pytest.mark.parametrize("given", [NO_KEYS, keyring("b"), keyring("b", encrypts=False)])
def test_log_whose_key_is_not_given_stays_as_it_is(encrypted: SmallLog, given: Keyring):
    encrypted.whole(8)
    [segment] = list_segments(encrypted.directory)
    with segment.open("ab") as file:
        file.write(b"torn")  # would be cut off
    before = content_of(encrypted.directory)

    with pytest.raises(LogKeyMissing, match=f"encrypted with key {key_of(segment)}"):
        FilesWriter(encrypted.directory, given).open(Lsn(0))
    other = SmallLog.__new__(SmallLog)
    other.directory, other.keyring = encrypted.directory, given
    reader = other.reader()
    for _ in range(2):  # it does not go on behind what it could not read
        with pytest.raises(LogKeyMissing):
            reader.read(1)
    reader.close()

    assert content_of(encrypted.directory) == before


def test_encryption_asked_for_later_leaves_what_is_there_and_encrypts_the_rest(
    tmp_path: Path, no_sync: None
):
    log = SmallLog(tmp_path / "log")
    append_canary(log, 8)
    log.keyring = keyring("a")
    log.reopen()
    log.whole(16)

    assert [key_of(path) is None for path in list_segments(log.directory)] == [True, False]
    assert log.ends() == [8, 16]
    [finding] = unfit_segments(log.directory, log.keyring)
    assert finding.code == "PEN-610"
    assert "1 segments of the log are not encrypted" in str(finding)

    log.writer.discard_before(Lsn(8))

    assert CANARY not in content_of(log.directory)
    assert unfit_segments(log.directory, log.keyring) == []


def test_encryption_given_up_needs_the_key_until_the_sinks_have_what_is_encrypted(
    encrypted: SmallLog,
):
    encrypted.whole(8)
    encrypted.keyring = keyring("a", encrypts=False)
    encrypted.reopen()
    encrypted.whole(16)

    assert texts(encrypted.read()) == ["1", "2"]
    [finding] = unfit_segments(encrypted.directory, NO_KEYS)
    assert finding.code == "PEN-311"

    encrypted.writer.discard_before(Lsn(8))
    encrypted.keyring = NO_KEYS
    encrypted.reopen()

    assert texts(encrypted.read(8)) == ["2"]


def test_new_key_in_front_of_the_old_one_encrypts_what_comes_and_the_old_one_reads(
    encrypted: SmallLog,
):
    encrypted.whole(8)
    encrypted.keyring = keyring("b", "a")
    encrypted.reopen()
    encrypted.whole(16)

    assert texts(encrypted.read()) == ["1", "2"]
    assert len({mark.key_id for mark in marks_of(encrypted.directory)}) == 2

    encrypted.writer.discard_before(Lsn(8))
    encrypted.keyring = keyring("b")
    encrypted.reopen()
    assert texts(encrypted.read(8)) == ["2"]


# --- files beside the log --------------------------------------------------------------------------


def batch_of(*values: str) -> pa.RecordBatch:
    rows = [
        {
            "id": f"a/{number}",
            "key": '{"id":1}',
            "value": value,
            "schema": "public",
            "table": "cards",
            "op": "insert",
            "commit_lsn": 8,
            "ordinal": number,
            "committed_at": None,
        }
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, DOCUMENTS)


def test_part_file_is_encrypted_and_read_from_any_message_on(tmp_path: Path):
    keys = keyring("a")
    canary = CANARY.decode()
    part = PartWriter(str(tmp_path), ".part-", keys)
    for number in range(3):
        part.write(message_of(batch_of(f'"{canary} {number}"', '"x"')))
    finished = part.finish()
    assert finished is not None

    values = [batch.column("value")[0].as_py() for batch in read_part(finished, keys)]
    some, cursor = read_some(finished.path, finished.size, Cursor(), 1, keys)
    more, end = read_some(finished.path, finished.size, cursor, 1 << 30, keys)

    assert values == [f'"{canary} {number}"' for number in range(3)]
    assert sum(map(len, some)) == 1
    assert [len(batch) for batch in more] == [1, 2, 2]
    assert end == Cursor(finished.size)
    assert canary.encode() not in Path(finished.path).read_bytes()
    with pytest.raises(LogKeyMissing):
        list(read_part(finished, keyring("b")))


def test_part_file_that_was_written_before_is_read_with_a_keyring(tmp_path: Path):
    part = PartWriter(str(tmp_path), ".part-")
    part.write(message_of(batch_of('"plain"')))
    finished = part.finish()
    assert finished is not None

    [batch] = read_part(finished, keyring("a"))

    assert batch.column("value").to_pylist() == ['"plain"']


def test_parked_documents_are_encrypted_line_by_line_whatever_stands_there_already(tmp_path: Path):
    path = tmp_path / "bus.parked.jsonl"
    plain, keys = Parked(path), keyring("a")
    plain.open()
    plain.append(batch_of('{"n":0}').to_pylist(), {"a/0": "refused"})
    sealed = Parked(path, keys)
    sealed.open()
    sealed.append(batch_of('{"n":0}', json.dumps(CANARY.decode())).to_pylist(), {})
    with path.open("ab") as file:
        file.write(b"aGFsZg")  # torn by a kill
    sealed.open()

    assert [each.id for each in sealed.read()] == ["a/0", "a/1"]
    assert CANARY not in path.read_bytes()
    with pytest.raises(LogKeyMissing):
        plain.read()

    sealed.replace(sealed.read())
    assert b"refused" not in path.read_bytes()
    assert sealed.read()[0].reason == "refused"


# --- where keys come from --------------------------------------------------------------------------


def key_file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "log.key"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "mode", "wanted"),
    [
        (KEY, 0o640, "has mode 0640, wanted 0600"),
        ("correct horse battery staple", 0o600, "something else than keys"),
        ("", 0o600, "something else than keys"),
        (KEY[:-1], 0o600, "something else than keys"),
    ],
)
def test_key_file_that_is_not_one_is_refused_without_showing_it(
    tmp_path: Path, text: str, mode: int, wanted: str
):
    given = Keyring(path=key_file(tmp_path, text, mode), encrypts=True)

    with pytest.raises(LogKeyUnusable, match=wanted) as caught:
        given.check()
    assert "horse" not in str(caught.value)
    assert KEY[:-1] not in str(caught.value)


def test_key_file_that_is_not_there_is_said_to_be(tmp_path: Path):
    with pytest.raises(LogKeyUnusable, match="cannot be read: No such file"):
        Keyring(path=tmp_path / "nothing", encrypts=True).encryptor()


def test_keyring_of_a_file_is_pickled_as_its_path_and_one_of_a_variable_through_the_vault(
    tmp_path: Path,
):
    path = key_file(tmp_path, f"{KEY}\n{'1d' * 32}\n")
    of_file = Keyring(path=path, encrypts=True)
    of_variable = keyring("c")
    with vault.using(vault.Vault(tmp_path)):
        sent_file, sent_variable = pickle.dumps(of_file), pickle.dumps(of_variable)

    assert pickle.loads(sent_file).key_id == of_file.key_id
    assert pickle.loads(sent_variable).key_id == of_variable.key_id
    assert b"c" * 64 not in sent_variable
    assert KEY.encode() not in sent_file
    assert "c" * 64 not in repr(of_variable)


@pytest.mark.parametrize(
    "given",
    [
        {"encrypt": True},
        {"encrypt": True, "key": "hunter2"},
        {"encrypt": True, "key": KEY, "key_file": "/tmp/key"},
        {"encrypt": True, "key": 5},
    ],
)
def test_options_without_one_place_of_good_keys_are_refused(given: dict[str, object]):
    with pytest.raises(ValueError, match="Input should be") as caught:
        kind_of("files").options.model_validate(given)
    assert "hunter2" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_log_whose_directory_was_deleted_is_begun_anew_with_another_key(
    tmp_path: Path, no_sync: None
):
    kind = kind_of("files")
    owner = LogOwner("shop", "a", tmp_path)
    writer = kind.log_of(kind.options.model_validate({"encrypt": True, "key": KEY}), owner).writer()
    writer.open(Lsn(8))
    writer.append(SliceHead(SliceKind.MARKER, Lsn(16)), b"", np.zeros(0, np.uint32))
    writer.close()
    shutil.rmtree(tmp_path / "log")
    other = kind.options.model_validate({"encrypt": True, "key": "2e" * 32})

    assert [each.code for each in kind.check(other, [owner]) if each.code != "PEN-302"] == []
    again = kind.log_of(other, owner).writer()
    again.open(Lsn(16))
    assert again.durable_lsn == 16
    again.close()
