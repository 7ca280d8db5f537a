"""What a kind of sink says of itself, so that nothing outside its folder asks which kind it is.

A kind is one object, found by its name (`sinks/registry.py`). It holds no connection and no state: it
makes the parts that do. Everything has an answer that suits a sink without the power in question, so
that a kind says only what is true of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from penstock.encryption import NO_KEYS, Keyring
from penstock.options import Options
from penstock.sinks.parked import ALL
from penstock.table import NO_ROUTES, Routes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.dsn import Dsn
    from penstock.findings import Finding
    from penstock.schema.description import TableStructure
    from penstock.sinks.chosen import ChosenTables
    from penstock.sinks.copying import Copying
    from penstock.sinks.describe import Describe
    from penstock.sinks.parked import ParkedEntry, Wanted
    from penstock.sinks.sink import Sink
    from penstock.sinks.status import SequencePosition, SinkStatus
    from penstock.sinks.subscriptions import Subscriptions
    from penstock.table import TableName

OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True)
class SinkPlace(Generic[OptionsT]):
    """One sink of one source of a pipeline: all that a kind needs to make its parts.

    `options` are those of this source (`SinkKind.of_source`). `state` is the source's state directory;
    a sink keeps what it must below `sinks/` there. `source_ids` are those of the whole pipeline.
    """

    name: str
    options: OptionsT
    pipeline: str
    source_id: str
    source_ids: tuple[str, ...]
    state: Path
    copies_first: bool = True  # whether tables are copied before they are followed
    routes: Routes = NO_ROUTES  # where `modifiers:` sends tables
    keyring: Keyring = NO_KEYS  # for rows that are kept in `state`

    @property
    def is_alone(self) -> bool:
        """Whether the pipeline has this one source only."""
        return len(self.source_ids) == 1


class Statements(NamedTuple):
    """What an admin would run at a sink: where, without passwords, and the text."""

    place: str
    text: str


class SinkKind(ABC, Generic[OptionsT]):
    """One kind of sink. Methods run on the driver, or in whichever command asks."""

    name: ClassVar[str]
    """What `kind:` says in the pipeline file."""

    options: ClassVar[type[Options]]
    """What a person may say: a frozen model with `kind: Literal["<name>"]`."""

    worker_modules: ClassVar[tuple[str, ...]] = ()
    """Modules of the executor half. Spark's Python workers import those of penstock's own kinds early."""

    has_working_files: ClassVar[bool] = False
    """Whether copies, what is parked and who has subscribed lie on the machine that delivers, not at the destination."""

    needs_ids: ClassVar[bool] = False
    """Whether documents are to know ids of columns and what identifies a row, as if `inject:` said so."""

    def needs_primary_key(self, options: OptionsT) -> bool:
        """Whether documents are keyed by the primary key, whatever the replica identity is."""
        del options
        return False

    # --- the parts -----------------------------------------------------------------------------

    @abstractmethod
    def build(self, place: SinkPlace[OptionsT], describe: Describe, shared: Any = None) -> Sink:
        """The driver half, unopened. `shared`: what `build_shared` made, where one loop has it."""

    @abstractmethod
    def build_copying(self, place: SinkPlace[OptionsT]) -> Copying:
        """What copies tables into the sink, unopened."""

    def build_shared(self, options: OptionsT) -> Any:
        """What the sources of a pipeline share at this sink, such as a connection."""
        del options

    def of_source(self, options: OptionsT, source_id: str) -> OptionsT:
        """The options where each of several sources has a place of its own."""
        del source_id
        return options

    def routed(self, options: OptionsT, routes: Routes) -> OptionsT:
        """The options with what `modifiers:` says of where tables go, for kinds that say it themselves as well.

        Raises:
            BadValue: both say it of the same table.
        """
        del routes
        return options

    # --- before anything is made ---------------------------------------------------------------

    def alone_at(self, options: OptionsT, pipeline: str) -> frozenset[str]:
        """Places that two sinks of a file cannot share, in words; the file is refused where two have one."""
        del options, pipeline
        return frozenset()

    def faults(self, options: OptionsT) -> Iterator[Finding]:
        """What stands in the way of delivering there at all. Changes nothing.

        An error keeps the pipeline from starting.
        """
        del options
        yield from ()

    def occupied(
        self, place: SinkPlace[OptionsT], tables: Sequence[TableName]
    ) -> Sequence[Finding]:
        """Tables whose place is taken by something that the pipeline has not made. Changes nothing.

        Warnings while there are others, which go on without them; errors where it is all of them.

        Raises:
            SinkError: the sink cannot be asked.
        """
        del place, tables
        return ()

    def check(
        self,
        places: Mapping[str, SinkPlace[OptionsT]],
        chosen: Mapping[str, ChosenTables],
    ) -> Iterator[Finding]:
        """Everything that `penstock check` says of the sink. Changes nothing. The default is `faults`.

        Args:
            places: by source, of all sources.
            chosen: by source, of those that answered.
        """
        del chosen
        yield from self.faults(next(iter(places.values())).options)

    def statements(self, options: OptionsT) -> Statements | None:
        """What an admin would run there instead of penstock; None where there is nothing."""
        del options
        return None

    def connections(self, options: OptionsT) -> Iterator[Dsn]:
        """The Postgres servers that are connected to, for who asks whether others can listen."""
        del options
        yield from ()

    def creates_tables(self, options: OptionsT) -> bool:
        """Whether tables of the source are made anew there, and may differ."""
        del options
        return False

    # --- while it runs, and after --------------------------------------------------------------

    def read_status(
        self, places: Sequence[SinkPlace[OptionsT]], parts: Sequence[SinkStatus]
    ) -> None:
        """Complete what the loop last reported (one part for each place) by what the sink has.

        Never raises: what cannot be asked is put into `error`.
        """
        del places, parts

    def sync_sequences(
        self, place: SinkPlace[OptionsT], structures: Collection[TableStructure]
    ) -> Sequence[SequencePosition]:
        """Let sequences there go on where the source's stand; where they stand now.

        Raises:
            SinkError: the sink cannot be asked, or refuses.
        """
        del place, structures
        return ()

    def subscriptions(self, places: Sequence[SinkPlace[OptionsT]]) -> Subscriptions | None:
        """Who has subscribed to the sink, at all its sources; None where nobody can.

        Raises:
            PackageMissing: the extra of the kind is not installed.
        """
        del places
        return None

    # --- what the destination refused ----------------------------------------------------------

    def parked(self, place: SinkPlace[OptionsT], wanted: Wanted = ALL) -> list[ParkedEntry]:
        """What is parked, in the source's order.

        Raises:
            SinkError: the sink cannot be asked.
        """
        del place, wanted
        return []

    def ask_parked(self, place: SinkPlace[OptionsT], action: str, ids: Collection[str]) -> None:
        """Leave a request, `retry` or `drop`, for the process that delivers, or for the next one.

        Raises:
            SinkError: the sink cannot be asked.
        """
        del place, action, ids

    def drop_parked(self, place: SinkPlace[OptionsT], ids: Collection[str]) -> None:
        """Forget entries for good. Nobody delivers meanwhile: the caller sees to that.

        Raises:
            SinkError: the sink cannot be asked.
        """
        del place, ids

    # --- the end -------------------------------------------------------------------------------

    def forget(self, place: SinkPlace[OptionsT]) -> list[str]:
        """Remove what penstock has there of its own, for `teardown`; what was removed.

        Tables and documents stay, and so does what other sources have there. The state directory is
        removed anyway.

        Raises:
            SinkError: or one of its kinds.
            SecondInstance: the pipeline still delivers there.
        """
        del place
        return []

    def forget_orphans(self, options: OptionsT, pipeline: str) -> dict[str, list[str]]:
        """Remove what is left of sources that are not in the file any more; by source, what.

        Raises:
            SinkError: or one of its kinds.
            SecondInstance: one is being delivered, by another file of this name.
        """
        del options, pipeline
        return {}
