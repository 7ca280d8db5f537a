"""The net effect of documents for a search server: what they lack is filled in, or they are refused; and who writes which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fix_changes import StreamMaker, of_seed
from penstock.changes.envelope import records_in_order
from penstock.changes.pgoutput import Column
from penstock.changes.shares import Share
from penstock.sinks.search.client import read_exactly
from penstock.sinks.search.mapping import Mapper
from penstock.sinks.search.merge import filled, in_portions, net_effect
from penstock.sinks.search.names import Names, aliases_of, index_of
from penstock.sinks.search.options import SearchOptions
from penstock.sinks.search.rows import RowWriter, identified
from penstock.sinks.search.versions import version, versions
from penstock.table import TableName
from penstock.testing import UNCHANGED, changes, relation, table, transaction, update

T = table(16400, "t", {"id": "int8", "note": "text", "big": "text"}, key=["id"])
MAPPER = Mapper.of(SearchOptions.model_validate({"url": "http://127.0.0.1:1"}))
LSN = 0x5000


def records(pieces: Any, share: Share | None = None) -> pa.RecordBatch:
    found = []
    for piece in pieces:
        relation_ = identified(piece.relation)
        if relation_ is None or not hasattr(piece, "after"):
            continue
        own = piece if share is None else share.of_either_key(piece)
        if own is not None:
            writer = RowWriter(relation_, MAPPER, "shop", piece.relation.table)
            found += writer.changes(own, share)
    return records_in_order(found)


def net(batch: pa.RecordBatch, there: dict[str, Any], *, is_ahead: bool = False) -> Any:
    found = versions(batch.column("commit_lsn").to_numpy(), batch.column("ordinal").to_numpy())
    return net_effect(batch, found, lambda _: there, lambda *_: is_ahead, alone=True)


def test_row_that_moves_late_in_a_long_transaction_that_changed_it():
    rows = [update(T, [str(key), "n", f"B{key}"]) for key in range(5000)]
    rows += [update(T, ["99999", "moved", UNCHANGED], key=["4500"])]
    batch = records(changes([relation(T), *transaction(LSN, *rows)])).slice(5000)
    written = {"id": 4500, "big": "B4500", "_position": version(LSN, 4500), "_ordinal": 4500}

    found = net(batch, {"4500": written})
    assert found.refused == {}
    assert b'"big":"B4500"' in found.sources[0].as_py()

    # It was done before, and another row has the old key since.
    done = {"id": 99999, "big": "B4500", "_position": version(LSN, 5000), "_ordinal": 5000}
    other = {"id": 4500, "big": "other", "_position": version(LSN, 5001), "_ordinal": 5001}
    found = net(batch, {"4500": other, "99999": done})
    assert found.refused == {}
    assert b'"big":"B4500"' in found.sources[0].as_py()

    assert len(net(batch, {"4500": other}).refused) == 1


def test_document_that_was_deleted_since_is_left_alone():
    batch = records(changes([relation(T), *transaction(LSN, update(T, ["1", "n", UNCHANGED]))]))
    assert len(net(batch, {}).refused) == 1
    found = net(batch, {}, is_ahead=True)
    assert (found.refused, len(found.rows)) == ({}, 0)


def test_document_from_before_a_column_was_called_so_makes_none_whole():
    # As after ALTER TABLE t RENAME was TO big, where documents are not copied anew, or not yet.
    batch = records(changes([relation(T), *transaction(LSN, update(T, ["1", "n", UNCHANGED]))]))
    older = {"id": 1, "note": "m", "was": "B", "_position": version(LSN - 64, 0)}
    found = net(batch, {"1": older})
    assert (len(found.refused), len(found.rows)) == (1, 0)
    # Of a later document the server refuses the write itself.
    later = {**older, "_position": version(LSN + 64, 0)}
    assert net(batch, {"1": later}).refused == {}


def test_numbers_of_a_document_are_written_digit_for_digit():
    text = b'{"a":[0.00000010,-0,1' + b"0" * 5000 + b'],"b":{"c":1e5},"d":"0.10"}'
    filled_in = filled(b'{"id":1}', read_exactly(text), ["a", "b", "d"])
    assert filled_in.replace(b": ", b":").replace(b", ", b",") == text[:-1] + b',"id":1}'


@pytest.mark.parametrize("oid", [1700, 1231])
def test_number_that_is_too_long_for_a_server_is_a_string(oid):
    column = Column("n", oid, -1, in_identity=False)
    digits = [b"12.50", b"9" * 1000, b"9" * 1001, b"-0." + b"1" * 998 + b"2"]
    wanted: list[Any] = [f'{{"n":{each.decode()}}}'.encode() for each in digits[:2]]
    wanted += [f'{{"n":"{each.decode()}"}}'.encode() for each in digits[2:]]
    if oid == 1231:
        digits = [b"{" + each + b",NULL}" for each in digits]
        wanted = [each.replace(b":", b":[").replace(b"}", b",null]}") for each in wanted]
    values, unfit = MAPPER.values(column, pa.array([*digits, None], pa.binary()))
    assert unfit is None
    assert [b'{"n":' + each + b"}" for each in values.to_pylist()[:-1]] == wanted
    assert not values[-1].is_valid


def test_changes_that_lack_values_are_taken_in_portions_in_their_order():
    rows = [update(T, [str(key), "n", "B"]) for key in range(10)]
    rows += [update(T, [str(key), "m", UNCHANGED]) for key in range(10)]
    rows += [update(T, [str(key + 50), "o", UNCHANGED], key=[str(key)]) for key in range(10)]
    batch = records(changes([relation(T), *transaction(LSN, *rows)]))
    client: Any = SimpleNamespace(read_at_once=1)
    portions = list(in_portions(batch, client))
    assert [len(each) for each in portions] == [18, 2 + 2 * 6, 2 * 4]
    assert pa.Table.from_batches(portions).equals(pa.Table.from_batches([batch]))
    for each in portions:  # a row that moves leaves its old document in the same one
        ids = each.column("id").to_pylist()
        assert all(one.removesuffix(":delete") in ids for one in ids)
    client.read_at_once = 500
    assert list(in_portions(batch, client)) == [batch]


def test_change_says_its_place_where_its_version_does_not():
    rows = [update(T, [str(key), "n", "B"]) for key in range(4098)]
    batch = records(changes([relation(T), *transaction(LSN, *rows)]))
    texts = batch.column("value").to_pylist()
    assert [b"_ordinal" in each for each in texts[4094:]] == [False, False, True, True]
    assert texts[-1].endswith(b'"_ordinal":4097}')


@pytest.mark.parametrize(
    "url", ["http://a b:9200", "http://a:9200/b c", "http://a/ü", "http://a/\tb"]
)
def test_url_that_no_request_can_be_made_of_is_a_mistake_in_the_file(url):
    with pytest.raises(ValueError, match="a URL without spaces"):
        SearchOptions.model_validate({"url": url})
    assert (
        SearchOptions.model_validate({"url": "http://a:9200/b%20c/\n"}).url == "http://a:9200/b%20c"
    )


@pytest.mark.parametrize("key", ["a\nb", "a b", "ż", ""])
def test_key_that_no_header_takes_is_a_mistake_in_the_file(key):
    with pytest.raises(ValueError, match="no header takes") as caught:
        SearchOptions.model_validate({"url": "http://127.0.0.1:1", "api_key": key})
    assert "a\nb" not in str(caught.value)


@pytest.mark.parametrize("seed", range(20))
def test_document_has_one_share_alone_also_of_a_row_that_moves(seed):
    pieces = changes(list(StreamMaker(of_seed(seed)).transactions(5, 30)))
    count = 2 + seed % 4
    shares = [records(pieces, Share(number, count, "key")) for number in range(count)]

    everything = records(pieces)
    ids = [one for share in shares for one in share.column("id").to_pylist()]
    assert sorted(ids) == sorted(everything.column("id").to_pylist())
    owners: dict[Any, set[int]] = {}
    for number, share in enumerate(shares):
        for row in share.select(["schema", "table", "key", "record_key"]).to_pylist():
            if "null" not in (row["key"] or "null"):  # the key of no real table has one
                document = row["schema"], row["table"], row["record_key"]
                owners.setdefault(document, set()).add(number)
    assert all(len(each) == 1 for each in owners.values())


def test_name_that_fits_is_the_same_as_ever_and_one_that_does_not_is_told_apart():
    names = Names("{schema}-{table}", "shop", "shop")
    assert names.alias(TableName("public", "orders")) == "public-orders"
    assert names.alias(TableName("Ab", "_x")) == "0.-41b-_x"
    long = names.alias(TableName("s", "ż" * 31))
    assert long == "s-" + "-c5-bc" * 31
    assert index_of(long, "1") == f"{long}.1"
    several = {names.alias(TableName("ż" * 31, "ß" * 30 + end)) for end in "abc"}
    assert len(several) == 3
    assert {len(each) for each in several} == {255}
    shared = Names("{schema}", "shop", "shop")
    both = [
        aliases_of(shared.alias(TableName("ż" * 31, "ß" * 30 + end)), "{schema}") for end in "ab"
    ]
    assert both[0][1] == both[1][1] == "0." + "-c5-bc" * 31
    assert both[0][0] != both[1][0]
