"""The indexes of a sink's tables: made, looked up, extended, switched, removed.

A table has an alias, which people search and changes go through, and one index behind it, which may be found under an alias of the
whole schema as well. A copy has an index of its own, whose
generation is the copy's id, until all of it is there; then the alias is switched, and the one before is removed.
"""

from __future__ import annotations

import itertools
import json
import logging
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import DestinationRefuses, RecordSchemaRefused, SinkError
from penstock.sinks.search.client import FORBIDDEN, MAKE_ROOM, NOT_FOUND, TOO_MANY, has_no_room
from penstock.sinks.search.mapping import VECTOR_TYPES, conflicts, missing, signature
from penstock.sinks.search.names import aliases_of, index_of, stem_of
from penstock.sinks.search.settings import (
    FIELD_LIMIT,
    GC_DELETES,
    LEAST_FIELDS,
    field_count,
    field_limit,
    has_knn,
    remembers,
    settings_of,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.sinks.search.client import Answer, Client
    from penstock.sinks.search.options import SearchOptions
    from penstock.sinks.search.store import Store

_log = logging.getLogger(__name__)

EXISTS = "resource_already_exists_exception"
_REFUSED = 400
_VECTOR_KINDS = {kind for kind, _ in VECTOR_TYPES.values()}
# A server takes request lines of 4,096 bytes, method and path of a proxy included.
_MOST_NAMES_BYTES = 3000


class Unfit(Exception):
    """Fields of an index have other types than the table's columns: it has to be made anew."""

    def __init__(self, fields: list[str]) -> None:
        super().__init__(", ".join(fields))
        self.fields = fields


class Lost(Unfit):
    """The index of a table was there, and is not any more."""

    def __init__(self, index: str, note: str) -> None:
        super().__init__([])
        self.index = index
        self.note = note  # where it says that it was there


def quoted(name: str) -> str:
    """A name in a path."""
    return urllib.parse.quote(name, safe="")


def _lists(names: Sequence[str]) -> Iterator[str]:
    """Names in a path, with commas between: several lists, none too long for a request line."""
    some: list[str] = []
    size = 0
    for name in map(quoted, names):
        if some and size + len(name) > _MOST_NAMES_BYTES:
            yield ",".join(some)
            some, size = [], 0
        some.append(name)
        size += len(name) + 1
    if some:
        yield ",".join(some)


@dataclass(frozen=True)
class Wanted:
    """What an index is to have: the fields of a table, and which table that is."""

    properties: Mapping[str, Any]
    table: str
    oid: int

    @property
    def text(self) -> str:
        """What tells it apart."""
        return f"{self.oid} {self.table} {signature(self.properties)}"


@dataclass
class Indexes:
    """Those of one sink. `owner` says whose they are, in the mapping of each."""

    client: Client
    options: SearchOptions
    owner: Mapping[str, str]
    store: Store
    # What this process knows: by index, the signatures of mappings that it has.
    _known: dict[str, set[str]] = field(default_factory=dict)

    def behind(self, aliases: Collection[str]) -> dict[str, str]:
        """The index behind each alias that is there."""
        found: dict[str, str] = {}
        for names in _lists(sorted(aliases)):
            answer = self.client.ask("GET", f"/_alias/{names}", None, NOT_FOUND)
            for index, content in answer.content.items():
                if isinstance(content, dict):
                    found |= dict.fromkeys(content.get("aliases", ()), index)
        return {alias: index for alias, index in found.items() if alias in aliases}

    def ensure(self, wanted: Mapping[str, Wanted]) -> dict[str, Exception]:
        """See that the index behind each alias has the fields that are wanted; why one has not.

        Raises:
            PenstockError: the server does not answer, or refuses us.
        """
        found = self.behind(wanted)
        failures: dict[str, Exception] = {}
        for alias, wish in wanted.items():
            text = wish.text
            index = found.get(alias)
            if index is not None and text in self._known.get(index, ()):
                continue
            try:
                index = self._fitting(alias, index, wish)
            except (RecordSchemaRefused, Unfit) as error:
                failures[alias] = error
                continue
            self._known.setdefault(index, set()).add(text)
        return failures

    def _fitting(self, alias: str, index: str | None, wish: Wanted) -> str:
        """The index behind an alias, with the fields that are wanted; made where the table has never had one.

        Raises:
            Lost: it has had one. To make it anew would hide that rows are missing.
            Unfit: see `_extend`.
            RecordSchemaRefused: see `_extend`.
        """
        if index is None and (before := self.store.index(wish.oid)) is not None:
            # Another task may have made it since we asked: it keeps that it has after it did.
            index = self.behind([alias]).get(alias)
            if index is None:
                raise Lost(before, self.store.where_index(wish.oid))
        if index is None:
            index = self._first(alias, wish)
        else:
            self._extend(index, wish)
        # Also of one that is there: who made it may have been killed before he could.
        self.store.keep_index(wish.oid, index)
        return index

    def of_copy(self, alias: str, copy_id: str) -> str:
        """The index that a copy goes into, or has gone: it keeps its name when the table gets another one."""
        found = self.behind([alias]).get(alias, "")
        return found if found.endswith(f".{copy_id}") else index_of(alias, copy_id)

    def is_there(self, index: str) -> bool:
        """Whether there is such an index, or alias."""
        answer = self.client.ask("HEAD", f"/{quoted(index)}", None, NOT_FOUND)
        return answer.status != NOT_FOUND

    def fields(self, alias: str) -> set[str]:
        """The fields of the index behind an alias."""
        answer = self.client.ask("GET", f"/{quoted(alias)}/_mapping", None, NOT_FOUND)
        if answer.status == NOT_FOUND:
            return set()
        return {
            name
            for content in answer.content.values()
            for name in content.get("mappings", {}).get("properties", {})
        }

    def _first(self, alias: str, wish: Wanted) -> str:
        """Make the index of a table that was not copied, under a number that no other one has or had."""
        self._require_free(alias)
        for number in itertools.count(1):
            index = index_of(alias, str(number))
            if self.create(index, wish, alias=alias):
                return index
            # Another task was quicker; or it is that of a table which had the name before.
            if (found := self.behind([alias]).get(alias)) is not None:
                self._extend(found, wish)
                return found
        raise AssertionError

    def forget(self) -> None:
        """Know nothing any more."""
        self._known.clear()

    def begin_copy(self, alias: str, copy_id: str, wish: Wanted) -> None:
        """Make the index that a copy goes into, where it is not there yet.

        Raises:
            RecordSchemaRefused: somebody else has the alias, or the server does not take the mapping.
        """
        index = index_of(alias, copy_id)
        if wish.text in self._known.get(index, ()):
            return
        self._require_free(alias)
        self.create(index, wish, is_copy=True)
        # Also of one that another task has made.
        self._known.setdefault(index, set()).add(wish.text)

    def create(
        self,
        index: str,
        wish: Wanted,
        *,
        alias: str | None = None,
        is_copy: bool = False,
    ) -> bool:
        """Make an index, of a copy one that nobody searches; False where it is there.

        Raises:
            RecordSchemaRefused: the server does not take the mapping.
        """
        body = {
            "settings": settings_of(wish.properties, self.options, is_copy=is_copy),
            "mappings": {
                "dynamic": "strict",
                "_meta": {"penstock": {**self.owner, "table": wish.table, "oid": wish.oid}},
                "properties": dict(wish.properties),
            },
        }
        if alias is not None:
            body["aliases"] = {each: {} for each in self._aliases(alias)}
        answer = self.client.ask("PUT", f"/{quoted(index)}", body, _REFUSED)
        if answer.status == _REFUSED and answer.error_type != EXISTS:
            raise self._refused(answer, index, wish.properties)
        if answer.status == _REFUSED:
            return False
        self._known.setdefault(index, set()).add(wish.text)
        return True

    def _extend(self, index: str, wish: Wanted) -> None:
        """Add fields that an index lacks.

        Raises:
            Unfit: it has some with another type.
            RecordSchemaRefused: it is not ours, or the server does not take the mapping.
        """
        answer = self.client.ask("GET", f"/{quoted(index)}/_mapping", None, NOT_FOUND)
        mapping = answer.content.get(index, {}).get("mappings") if answer.status < 300 else None
        if mapping is None:
            raise SinkError(
                f"index {index} is gone",
                self.client.where,
                "nothing, penstock tries again by itself",
            )
        meta = mapping.get("_meta", {}).get("penstock", {})
        if not self._is_ours(meta):
            raise self._not_ours(index)
        has = mapping.get("properties", {})
        if meta.get("oid") != wish.oid:
            if meta.get("table") != wish.table:
                raise self.taken(index, str(meta.get("table")))
            raise Unfit(sorted(wish.properties))  # another table has the name by now
        if unfit := conflicts(has, wish.properties):
            raise Unfit(unfit)
        if added := missing(has, wish.properties):
            if has_knn(added) and not has_knn(has):
                raise Unfit(sorted(added))  # whether an index has k-NN is said when it is made
            self._make_room(index, {**has, **added})
            body = {"properties": added}
            path = f"/{quoted(index)}/_mapping"
            answer = self.client.ask("PUT", path, body, _REFUSED)
            if answer.status == _REFUSED:
                raise self._refused(answer, index, added)

    def _make_room(self, index: str, properties: Mapping[str, Any]) -> None:
        """Let an index have that many fields."""
        count = field_count(properties)
        if count <= LEAST_FIELDS:
            return  # none has ever been made with less
        found = self._settings([index], FIELD_LIMIT).get(index, {})
        if count > int(found.get(FIELD_LIMIT, 0)):
            body = {FIELD_LIMIT: field_limit(properties)}
            self.client.ask("PUT", f"/{quoted(index)}/_settings", body)

    def remember_deletes(self) -> None:
        """Have indexes that are there remember deletes as long as those that are made now: an earlier penstock left it to the server."""
        wanted = self.options.gc_deletes
        for index, settings in self._settings(self.store.indexes(), GC_DELETES).items():
            if remembers(settings) >= wanted:
                continue
            body = {GC_DELETES: time_text(wanted)}
            path = f"/{quoted(index)}/_settings"
            answer = self.client.ask("PUT", path, body, NOT_FOUND, FORBIDDEN, TOO_MANY)
            if answer.status in (FORBIDDEN, TOO_MANY):
                # It takes no writes, or the user may not: who delivers finds out which.
                _log.warning(
                    "index %s remembers deletes for %g s only: it takes no setting (%s)",
                    index,
                    remembers(settings),
                    answer.error_type,
                )

    def _settings(self, indexes: Sequence[str], name: str) -> dict[str, dict[str, str]]:
        """Of indexes that are there what one setting is, where it was set."""
        found: dict[str, dict[str, str]] = {}
        for names in _lists(indexes):
            # Each has a uuid: what is not there is told apart from what was not set.
            path = (
                f"/{names}/_settings/index.uuid,{name}?flat_settings=true&ignore_unavailable=true"
            )
            answer = self.client.ask("GET", path, None, NOT_FOUND, FORBIDDEN)
            if answer.status < 300:
                found |= {index: content["settings"] for index, content in answer.content.items()}
        return found

    def _is_ours(self, meta: Any) -> bool:
        """Whether an index was made by this sink, by what its mapping says."""
        return all(meta.get(name) == value for name, value in self.owner.items())

    def _not_ours(self, index: str) -> RecordSchemaRefused:
        return RecordSchemaRefused(
            f"index {index} was not made by this sink of this pipeline",
            self.client.where,
            "choose another index:, or remove it",
        )

    def _stranger(self, alias: str) -> str | None:
        """An index that this sink has not made, and that is called as an alias, or found under the one of a table."""
        for each in self._aliases(alias):
            answer = self.client.ask("GET", f"/{quoted(each)}/_alias", None, NOT_FOUND)
            if answer.status == NOT_FOUND:
                continue
            if each in answer.content:
                return each
            # All may be found under the alias of a schema.
            others = answer.content.keys() - self._owned(each).keys() if each == alias else ()
            if others:
                return str(min(others))
        return None

    def _require_free(self, alias: str) -> None:
        """See that nobody else has an alias: to take it would hide what they have from those who search it.

        Raises:
            RecordSchemaRefused: another pipeline has it, say, or another sink.
        """
        if (stranger := self._stranger(alias)) is not None:
            raise self._not_ours(stranger)

    def taken(self, index: str, table: str) -> RecordSchemaRefused:
        """The error of a table whose place another one has."""
        return RecordSchemaRefused(
            f"index {index} holds another table, {table}",
            self.client.where,
            "send each table to an index of its own: see index:, and route: of modifiers:",
        )

    def _refused(
        self, answer: Answer, index: str, properties: Mapping[str, Any]
    ) -> RecordSchemaRefused:
        # The server's words name fields and types, never values: it has seen none.
        error = answer.content.get("error", {})
        said = json.dumps(error.get("reason", ""))[:300] if isinstance(error, dict) else ""
        if has_no_room(answer):
            return RecordSchemaRefused(
                f"the server does not make index {index}: {said}", self.client.where, MAKE_ROOM
            )
        if vectors := [name for name, each in properties.items() if each["type"] in _VECTOR_KINDS]:
            return RecordSchemaRefused(
                f"the server does not take the mapping of index {index}, with {', '.join(vectors)} as vectors:"
                f" {answer.error_type} {said}",
                self.client.where,
                "install vector search where the server lacks it (k-NN of OpenSearch, x-pack of Elasticsearch), or"
                " write vector_as: text",
            )
        return RecordSchemaRefused(
            f"the server does not take the mapping of index {index}: {answer.error_type} {said}",
            self.client.where,
            "choose other forms for its columns, or leave them out with modifiers:",
        )

    # --- generations ---------------------------------------------------------------------------

    def switch(self, alias: str, index: str) -> list[str]:
        """Have an alias lead to an index from now on; those that the table had before, for who removes them.

        A search that is under way there goes on; what is older than that is removed. May be done again.

        Raises:
            DestinationRefuses: the index is not there.
            RecordSchemaRefused: somebody else has the alias.
        """
        self._require_free(alias)
        path = f"/{quoted(index)}"
        refresh = {"index": {"refresh_interval": None}}
        if self.client.ask("PUT", f"{path}/_settings", refresh, NOT_FOUND).status == NOT_FOUND:
            raise DestinationRefuses(
                f"index {index}, which a copy went into, is gone",
                self.client.where,
                "have the table copied again: penstock tables PIPELINE.yml resync",
            )
        self.client.ask("POST", f"{path}/_refresh")
        actions = self._actions("add", index, alias)
        now = self.behind([alias]).get(alias)
        before = [] if now is None or now == index else [now]
        if before:
            self._require_same_table(before[0], index)
            actions += self._actions("remove", before[0], alias)
        meta = self._meta(index)
        if (other := self._elsewhere(meta, {index, *before})) is not None:
            actions += [{"remove": {"index": other, "alias": each}} for each in self._found(other)]
            before.append(other)
        ours = [each for each in before if self._owned(each)]
        if ours:
            self.store.keep_retired({*self.store.retired(), *ours})
        self._alias(actions, alias)
        if isinstance(meta.get("oid"), int):
            self.store.keep_index(meta["oid"], index)
        self.delete(self._outdated(alias, index) - set(before))
        return ours

    def remove(self, retired: Collection[str]) -> None:
        """Delete indexes that `switch` has named, when nobody can be searching them any more."""
        self.delete(retired)
        self.store.keep_retired(set(self.store.retired()).difference(retired))

    def remove_left(self, own: Collection[str]) -> None:
        """Delete those that a process has named which was killed since; but for our own, whose time has not come."""
        left = set(self.store.retired()).difference(own)
        if left:
            # Where one is found under some name, the alias had not been switched yet.
            self.delete([index for index in left if not self._found(index)])
            self.store.keep_retired(own)

    def _elsewhere(self, meta: Mapping[str, Any], known: Collection[str]) -> str | None:
        """The index that a table had under another name: of one that was renamed while it was copied, or since `index:` changed."""
        if not self._is_ours(meta) or not isinstance(meta.get("oid"), int):
            return None
        found = self.store.index(meta["oid"])
        if found is None or found in known:
            return None
        its = self._meta(found)
        return found if self._is_ours(its) and its.get("oid") == meta["oid"] else None

    def _found(self, index: str) -> list[str]:
        """What an index is found under."""
        answer = self.client.ask("GET", f"/{quoted(index)}/_alias", None, NOT_FOUND)
        return sorted(answer.content.get(index, {}).get("aliases", ()))

    def _require_same_table(self, one: str, other: str) -> None:
        """See that two indexes are generations of one table, or of one and its successor of that name."""
        metas = [self._meta(each) for each in (one, other)]
        if all(map(self._is_ours, metas)):
            (old, new), key = metas, "table"
            if old.get("oid") != new.get("oid") and old.get(key) != new.get(key):
                raise self.taken(one, str(old.get(key)))

    def _meta(self, index: str) -> dict[str, Any]:
        answer = self.client.ask("GET", f"/{quoted(index)}/_mapping", None, NOT_FOUND)
        found = answer.content.get(index, {}).get("mappings", {}).get("_meta", {})
        return dict(found.get("penstock", {}))

    def move(self, alias: str, before: str) -> None:
        """Have what is behind an alias be found under another one."""
        index = next(iter(self._owned(before)), None)
        if index is None:
            return  # done already, or never made
        if (stranger := self._stranger(alias)) is not None:
            # Its table stops at its next row, or waits for a copy.
            _log.warning("index %s stays where it is: %s has %s", index, stranger, alias)
            return
        # Carried out one after the other: what both have in common stays.
        actions = [*self._actions("remove", index, before), *self._actions("add", index, alias)]
        other = self.behind([alias]).get(alias)
        if other is not None and other != index:
            actions += self._actions("remove", other, alias)
        self._alias(actions, alias)

    def drop(self, alias: str) -> None:
        """A table is no more: remove its index."""
        index = self.behind([alias]).get(alias)
        if index is not None:
            self.delete(self._owned(index))

    def vacate(self, alias: str) -> None:
        """Another table has the name from now on: what is there stays under the name of its index."""
        for index in self._owned(alias):
            self._alias(self._actions("remove", index, alias), alias)

    def _aliases(self, alias: str) -> tuple[str, ...]:
        return aliases_of(alias, self.options.index)

    def _actions(self, verb: str, index: str, alias: str) -> list[dict[str, Any]]:
        """Let an index be found under an alias, and that of its schema; or no longer."""
        return [{verb: {"index": index, "alias": each}} for each in self._aliases(alias)]

    def _alias(self, actions: list[dict[str, Any]], alias: str) -> None:
        answer = self.client.ask("POST", "/_aliases", {"actions": actions}, _REFUSED)
        if answer.status == _REFUSED:
            raise DestinationRefuses(
                f"an index is called {' or '.join(self._aliases(alias))},"
                " and penstock needs that name for an alias:"
                f" {answer.error_type}",
                self.client.where,
                "choose another index:, or remove it",
            )

    def _outdated(self, alias: str, index: str) -> set[str]:
        """Other indexes of the table that an index is of, which nobody searches.

        Those of another table that had the name stay: one that was renamed is searched under its new name, and one that
        was dropped is kept, unless `dropped_tables` says otherwise.
        """
        oid, start = self._meta(index).get("oid"), f"{stem_of(alias)}."
        ours = {
            name
            for name, meta in self._owned(f"{start}*").items()
            if meta.get("oid") == oid and "." not in name.removeprefix(start)
        } - {index}
        if not ours:
            return set()
        path = f"/{urllib.parse.quote(f'{start}*', safe='*')}/_alias"
        answer = self.client.ask("GET", path, None, NOT_FOUND)
        return {name for name in ours if not answer.content.get(name, {}).get("aliases")}

    def _owned(self, pattern: str) -> dict[str, dict[str, Any]]:
        """Indexes that this sink has made, with what their mappings say of them."""
        path = f"/{urllib.parse.quote(pattern, safe='*')}/_mapping?filter_path=*.mappings._meta"
        answer = self.client.ask("GET", path, None, NOT_FOUND)
        if answer.status == NOT_FOUND:
            return {}
        metas = {
            index: content["mappings"].get("_meta", {}).get("penstock", {})
            for index, content in answer.content.items()
        }
        return {index: meta for index, meta in metas.items() if self._is_ours(meta)}

    def delete(self, indexes: Collection[str]) -> None:
        """Remove indexes, as far as they are there."""
        for index in sorted(indexes):
            self.client.ask("DELETE", f"/{quoted(index)}", None, NOT_FOUND)
            self._known.pop(index, None)
