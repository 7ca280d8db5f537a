"""Rows as documents of a search server: one for each row, as it is now.

Tasks write in parallel, each key in one task; every write has the version of its change, so that what is repeated or late changes
nothing. The position is a document at the server, written when all of a batch is acknowledged.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DestinationRefuses, PenstockError, SinkError
from penstock.failpoints import fault_point
from penstock.sinks.documents.contract import DocumentSink, DocumentsRefused
from penstock.sinks.documents.patterns import TablesOfBatch
from penstock.sinks.search.bulk import IndexGone, Writes, together, writes
from penstock.sinks.search.check import findings
from penstock.sinks.search.client import given_back
from penstock.sinks.search.indexes import quoted
from penstock.sinks.search.mapping import Mapper
from penstock.sinks.search.merge import (
    TasksMixed,
    fetch_documents,
    in_portions,
    is_deleted_since,
    net_effect,
)
from penstock.sinks.search.names import ORDINAL, POSITION, field_name, index_of, is_shared
from penstock.sinks.search.options import DroppedTables, Fields
from penstock.sinks.search.parts import ask_for_copy, make_parts
from penstock.sinks.search.rows import DELETE_HALF, copied_version
from penstock.sinks.search.versions import version, versions
from penstock.sinks.search.widening import keeps_documents
from penstock.table import TableName
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.findings import Finding
    from penstock.lsn import Lsn
    from penstock.schema.difference import Difference
    from penstock.sinks.describe import WholeSchema
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.search.options import SearchOptions
    from penstock.sinks.search.parts import Parts

_log = logging.getLogger(__name__)

_PAGE = 5000


class SearchSink(DocumentSink):
    """Delivers in tasks; stores the state all the same, since a repeat changes nothing."""

    stores_state = True
    keeps_schemas = True
    shows_rows = True
    delivered_by = "tasks"
    parks_by_key = True  # by versions: see `settle` and `emptied`
    batch_bytes = 64 * 1024 * 1024

    def __init__(self, place: SinkPlace[SearchOptions]) -> None:
        self._place = place
        self._options = place.options
        self._made: Parts | None = None
        self._is_drivers = False
        self._alone = True
        self._left: list[str] = []
        self._ending: dict[TableName, str] = {}
        # Of tables that were renamed since the last state: what they are known as.
        self._former: dict[TableName, TableName] = {}
        self._retired: list[tuple[float, str]] = []  # indexes, and when they may go
        self.shared_by: Literal["key", "table", "schema"] = "key"

    @property
    def _parts(self) -> Parts:
        if self._made is not None and not self._made.client.is_ours:
            self._made = None  # forked: it is left to the parent
        if self._made is None:
            self._made = make_parts(self._place)
        return self._made

    def open(self) -> str | None:
        """Reach the server; the state that is stored there."""
        self._is_drivers = True
        parts = self._parts
        parts.client.go_on()
        parts.indexes.forget()
        _ = parts.engine
        state = parts.store.open()
        parts.indexes.remove_left([index for _, index in self._retired])
        parts.indexes.remember_deletes()
        self.shared_by = "table" if parts.store.shared_by_table() else "key"
        return state

    # --- in tasks, and on the driver -----------------------------------------------------------

    def begin_share(self, shared_by: str, count: int) -> None:
        """Know whether another task may write the same table."""
        self._alone = count == 1 or shared_by != "key"

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Write documents; on the driver also what is left to it, and the state."""
        self._left = []
        refused: dict[str, str] = {}
        for batch in documents:
            refused |= self._write(batch)
        if refused:
            raise DocumentsRefused(refused)
        for table, copy_id in self._ending.items():
            self._show(table, copy_id)
        self._ending = {}
        if state is not None:
            self.settle(self._left)
            fault_point("search.before_position")
            self._parts.store.write(state)
            self._former = {}
            fault_point("search.after_position")

    def left_over(self) -> Sequence[str]:
        """Tables that were emptied: that is done when no task writes what is older."""
        return self._left

    def settle(self, left: Sequence[str]) -> None:
        """Empty tables of what is older than their TRUNCATE."""
        for each in left:
            table, commit_lsn, ordinal = _emptied(each)
            alias = self._parts.names.alias(table)
            self._truncate(alias, version(commit_lsn, ordinal), ordinal)

    def emptied(self, left: Sequence[str]) -> Mapping[TableName, tuple[int, int]]:
        """Their last TRUNCATEs. What is older and written later would be there again: no version says that it is gone."""
        found: dict[TableName, tuple[int, int]] = {}
        for each in left:
            table, *place = _emptied(each)
            found[table] = max(found.get(table, (0, 0)), (place[0], place[1]))
        return found

    def _write(self, batch: pa.RecordBatch) -> dict[str, str]:
        """Write a batch, table by table; what is refused, and why."""
        refused: dict[str, str] = {}
        tables = TablesOfBatch.of(batch)
        for number, name in enumerate(tables.names):
            rows = batch if len(tables.names) == 1 else batch.filter(tables.rows(number))
            refused |= self._write_table(TableName(*name), rows)
        return refused

    def _write_table(self, table: TableName, batch: pa.RecordBatch) -> dict[str, str]:
        ops = batch.column("op")
        special = pc.is_in(ops, pa.array(["schema", "truncate", "read"]))
        if not pc.any(special).as_py():
            return self._write_rows(self._parts.names.alias(table), batch)
        refused: dict[str, str] = {}
        alias = self._parts.names.alias(table)
        if copied := self._only(batch, "read"):
            for copy_id, rows in _by_copy(copied):
                index = self._parts.indexes.of_copy(alias, copy_id)
                refused |= self._write_rows(index, rows, is_copy=True)
        for row in batch.filter(pc.equal(ops, "truncate")).to_pylist():
            self._left.append(json.dumps([*table, row["commit_lsn"], row["ordinal"]]))
        rest = batch.filter(pc.invert(special))
        if len(rest):
            refused |= self._write_rows(alias, rest)
        for row in batch.filter(pc.equal(ops, "schema")).to_pylist():
            self._follow(json.loads(row["value"]))
        return refused

    def _only(self, batch: pa.RecordBatch, op: str) -> pa.RecordBatch | None:
        found = batch.filter(pc.equal(batch.column("op"), op))
        return found if len(found) else None

    def refused(self, batch: pa.RecordBatch) -> dict[str, str]:
        """Documents that need not be sent, since they would be refused: none."""
        del batch
        return {}

    def _write_rows(
        self, target: str, batch: pa.RecordBatch, *, is_copy: bool = False
    ) -> dict[str, str]:
        """Write the net effect of rows of one table."""
        refused = self.refused(batch)
        if refused:
            return refused
        # Tasks make what is missing. For documents that were copied, or parked, nobody does: the server itself
        # would, with fields of its own choosing.
        if self._is_drivers and not self._parts.indexes.is_there(target):
            reason = f"index {target} is gone: have the table copied anew"
            return dict.fromkeys(batch.column("id").to_pylist(), reason)
        found = versions(batch.column("commit_lsn").to_numpy(), batch.column("ordinal").to_numpy())
        if is_copy:
            found = np.full(len(batch), copied_version(batch.column("commit_lsn")[0].as_py()))
        refused = {}
        first = 0
        for portion in in_portions(batch, self._parts.client):
            refused |= self._write_portion(target, portion, found[first:], is_copy)
            if refused and _has_moves(batch):
                break  # the others come again; they may overwrite what a row that moved has left
            first += len(portion)
        return refused

    def _write_portion(
        self, target: str, batch: pa.RecordBatch, found: Any, is_copy: bool
    ) -> dict[str, str]:
        """Write the net effect of some rows; `found` begins with their versions."""
        client = self._parts.client
        try:
            net = net_effect(
                batch,
                found,
                lambda ids: fetch_documents(client, target, ids),
                lambda one, version: is_deleted_since(client, target, one, version),
                alone=self._alone,
            )
        except TasksMixed:
            raise self._share_by_table(batch) from None
        if net.refused:
            return net.refused
        if not len(net.rows):
            return {}
        places = net.rows
        ids, owners = (_some(batch.column(name), places) for name in ("record_key", "id"))
        is_gone = np.asarray(pc.equal(pc.binary_length(net.sources), 0))
        goes_first = np.isin(places, list(net.first))
        try:
            first, rest = (
                _writes(ids, found[places], net.sources, owners, some, is_gone)
                for some in (goes_first, ~goes_first)
            )
            if refused := self._send(target, first, is_copy):
                # What a row has left by moving stays, until its new document is taken: that has values from there.
                halves = {each + DELETE_HALF.decode(): why for each, why in refused.items()}
                return refused | halves
            return self._send(target, rest, is_copy)
        except IndexGone:
            self._parts.indexes.forget()
            raise SinkError(
                f"index {target} is gone",
                f"sink {self._place.name}",
                "nothing, penstock tries again by itself; if it stays, have the table copied anew:"
                " penstock tables PIPELINE.yml resync",
            ) from None

    def _send(self, target: str, some: Writes | None, is_copy: bool) -> dict[str, str]:
        return {} if some is None else self._parts.bulk.send(target, some, is_alias=not is_copy)

    def _share_by_table(self, batch: pa.RecordBatch) -> SinkError:
        """A row has moved without its values: from now on one task has all rows of a table, in order."""
        self._parts.store.share_by_table()
        table = f"{batch.column('schema')[0].as_py()}.{batch.column('table')[0].as_py()}"
        return SinkError(
            f"an update of {table} changed a key and did not bring all values: the batch comes again,"
            " with all rows of a table in one task",
            f"sink {self._place.name}",
            "nothing, penstock goes on by itself; REPLICA IDENTITY FULL avoids it",
        )

    # --- on the driver -------------------------------------------------------------------------

    def end_copies(self, copies: Mapping[TableName, str]) -> None:
        """Know which copies the next documents end, by the names that their tables go by here."""
        self._ending = dict(copies)

    def _show(self, table: TableName, copy_id: str) -> None:
        """A copy is whole: have it searched."""
        parts = self._parts
        alias = parts.names.alias(table)
        index = index_of(alias, copy_id)
        if not parts.indexes.is_there(index):
            _log.warning("%s has no documents: nothing identifies its rows", table)
            return
        fault_point("search.before_switch")
        for before in parts.indexes.switch(alias, index):
            self._retired.append((time.monotonic() + timing().search_grace_seconds, before))
        fault_point("search.after_switch")

    def idle(self) -> None:
        """Remove indexes that nobody can be searching any more."""
        while self._retired and self._retired[0][0] <= time.monotonic():
            self._parts.indexes.remove([self._retired[0][1]])
            del self._retired[0]

    def _truncate(self, alias: str, position: int, ordinal: int) -> None:
        """Delete what is older than a TRUNCATE, each by its own version."""
        parts = self._parts
        if alias not in parts.indexes.behind([alias]):
            return
        # In a long transaction others have the same version.
        same = [{"term": {POSITION: position}}, {"range": {ORDINAL: {"lt": ordinal}}}]
        older = [{"range": {POSITION: {"lt": position}}}, {"bool": {"filter": same}}]
        query = {
            "size": _PAGE,
            "_source": False,
            "query": {"bool": {"should": older}},
            "sort": ["_doc"],
        }
        # Of shards that are away nobody knows what they have: those are waited for.
        path = f"/{quoted(alias)}/_search?allow_partial_search_results=false"
        while True:
            parts.client.ask("POST", f"/{quoted(alias)}/_refresh")
            answer = parts.client.ask("POST", path, query)
            ids = [each["_id"] for each in answer.content["hits"]["hits"]]
            if not ids:
                return
            column = pa.array([each.encode() for each in ids], pa.large_binary())
            found = writes(column, np.full(len(ids), position), None, pa.array(ids, pa.string()))
            if refused := parts.bulk.send(alias, found, is_alias=True):
                raise DestinationRefuses(
                    f"{len(refused)} documents of a table that was emptied are not deleted:"
                    f" {next(iter(refused.values()))}",
                    f"sink {self._place.name}",
                    "see the server's log for the reason",
                )

    def _follow(self, change: dict[str, Any]) -> None:
        """Do what a change of a table means to its index, once; what was done is kept beside the schema log."""
        parts = self._parts
        table = TableName(change["schema"], change["table"])
        for each in change["difference"]:
            if each["op"] == "rename_table":
                before = TableName.parse(each["before"])
                self._former[table] = self._former.pop(before, before)
        if parts.store.is_logged(change["id"], is_done=True):
            return
        # Before anything is done: rows from before the change must not come again, since the table is not where it was.
        parts.store.log(change, is_done=False)
        fault_point("search.before_schema_change")
        alias = parts.alias(table)
        for each in change["difference"]:
            op = each["op"]
            if op == "create_table":
                parts.indexes.vacate(alias)
            elif op == "drop_table" and self._options.dropped_tables is DroppedTables.DELETE:
                parts.indexes.drop(alias)
            elif op == "rename_table":
                parts.indexes.move(alias, parts.alias(TableName.parse(each["before"])))
        fields = parts.indexes.fields(alias) if self._options.fields is Fields.NAMES else ()
        if any(self._needs_copy(each, fields) for each in change["difference"]) and not (
            ask_for_copy(self._place, table, self._former.get(table))
        ):
            _log.warning("%s is not copied anew: it is not followed yet", table)
        fault_point("search.after_schema_change")
        parts.store.log(change, is_done=True)

    def keep_schemas(self, schemas: Sequence[WholeSchema], lsn: Lsn) -> None:
        """Keep them in the schema log, each as a version."""
        for each in schemas:
            self._parts.store.keep_schema(each, lsn)

    def has_followed(self, change: str) -> bool:
        """Whether a change is in the schema log, done or only begun: the rows before it are delivered then."""
        return self._parts.store.is_logged(change)

    def keeps_rows(self, difference: Difference, *, may_compute: bool) -> bool:
        """A type that only became wider leaves documents as they are."""
        return (
            difference.op == "column_type"
            and not may_compute
            and keeps_documents(difference.before, difference.after, Mapper.of(self._options))
        )

    def _needs_copy(self, difference: dict[str, Any], fields: Collection[str]) -> bool:
        """Whether documents that are there have other fields than they should, whatever their rows hold: of that
        penstock sees to by itself."""
        op = difference["op"]
        if op == "rename_column":
            return self._options.fields is not Fields.IDS
        if op == "rename_table":
            return is_shared(self._options.index)  # each document says which table it is of
        return op == "add_column" and field_name(difference["after"]["name"]) in fields

    # --- the rest ------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Wait for the server no longer."""
        if self._made is not None:
            self._made.client.give_up()

    def check(self) -> Iterator[Finding]:
        """What stands in the way."""
        self._is_drivers = True
        yield from findings(self._parts)

    def forget(self) -> list[str]:
        """Remove the position; documents and the schema log of others stay."""
        parts = self._parts
        try:
            parts.store.forget_sharing()
            found = parts.store.forget()
        finally:
            self._is_drivers = True
            self.close()
        return [f"position in index penstock at {self._options.url}"] if found else []

    def close(self) -> None:
        """End connections; those of a task are left to the next one of this process."""
        made, self._made = self._made, None
        if made is None or not made.client.is_ours:
            return
        retired, self._retired = self._retired, []
        if retired:
            with suppress(PenstockError):  # what stays is removed when the sink is opened again
                made.indexes.remove([index for _, index in retired])
        if self._is_drivers:
            made.client.close()
        else:
            given_back(self._options, made.client)


def _emptied(left: str) -> tuple[TableName, int, int]:
    """The table of a TRUNCATE that a task has left over, and where it stands."""
    schema, name, commit_lsn, ordinal = json.loads(left)
    return TableName(schema, name), commit_lsn, ordinal


def _writes(
    ids: pa.Array, found: Any, sources: pa.Array, owners: pa.Array, mask: Any, is_gone: Any
) -> Writes | None:
    """Writes of some documents; deletes of those that are gone."""
    made = []
    for chosen, is_delete in ((mask & ~is_gone, False), (mask & is_gone, True)):
        rows = np.flatnonzero(chosen)
        if not len(rows):
            continue
        made.append(
            writes(
                _some(ids, rows),
                found[rows],
                None if is_delete else _some(sources, rows),
                _some(owners, rows),
            )
        )
    return together(made) if made else None


def _some(values: pa.Array, rows: Any) -> pa.Array:
    """Values at ascending places, which mostly are all."""
    return values if len(rows) == len(values) else values.take(pa.array(rows))


def _has_moves(batch: pa.RecordBatch) -> bool:
    """Whether rows have moved to another key."""
    ends = pc.ends_with(batch.column("id"), pattern=DELETE_HALF.decode())
    return bool(pc.any(ends).as_py())


def _by_copy(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Copied rows by their copy, which their ids name: `…:read:<copy>:<oid>:<ordinal>`."""
    copies = pc.list_element(
        pc.split_pattern(batch.column("id"), ":", reverse=True, max_splits=3), 1
    )
    encoded = copies.dictionary_encode()
    for copy_id in encoded.dictionary.to_pylist():
        mask = pc.equal(copies, copy_id)
        rows = batch if len(encoded.dictionary) == 1 else batch.filter(mask)
        yield copy_id.removeprefix("read:"), rows
