"""What a document sink is: `DocumentSink`, made by a `DocumentKind`. Public as `penstock.sink`.

Knows how sinks are called, not what penstock does around them: that is in the modules beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from penstock.errors import PenstockError, SinkDefect
from penstock.findings import Finding
from penstock.options import Options
from penstock.sinks.kind import SinkKind, SinkPlace
from penstock.sinks.parked import ALL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.lsn import Lsn
    from penstock.schema.difference import Difference
    from penstock.sinks.describe import WholeSchema
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.documents.workspace import Workspace
    from penstock.sinks.parked import ParkedEntry, Wanted
    from penstock.sinks.status import SinkStatus
    from penstock.table import TableName

OptionsT = TypeVar("OptionsT", bound=Options)


class DocumentsRefused(Exception):
    """The destination refuses some documents for what they are; it would take the others.

    `reasons` says why, by the id of each. Raised by `deliver`, of which nothing has happened then; penstock
    parks these documents or stops their tables, as `on_refused:` says, and delivers the rest. A
    reason holds no value of a row.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(f"{len(reasons)} documents refused")
        # An exception is a reason, and a value of the column `id` an id.
        self.reasons = {str(one): str(reason) for one, reason in dict(reasons).items()}

    def __reduce__(self) -> tuple[type[DocumentsRefused], tuple[dict[str, str]]]:
        return DocumentsRefused, (self.reasons,)


class DocumentSink(ABC):
    """Where documents go. Made anew for each run and each command; holds nothing until it is opened.

    The order of calls, from one thread at a time but for `interrupt`:

        open() → deliver() … → close()        open() may come again after an exception
        check(), forget()                     alone, without open() before
    """

    stores_state: ClassVar[bool] = False
    """Whether the destination stores `state` together with the documents: both or neither.

    Then nothing is ever doubled, and nothing lost with the state directory. Otherwise penstock keeps the state
    itself, after the documents: the last batch may come twice after a crash, with the same ids."""

    delivered_by: ClassVar[Literal["driver", "tasks"]] = "driver"
    """Who calls `deliver`: the driver, with whole batches in source order; or Spark tasks, at the
    same time, each document of a key (`shared_by`) in one task and in order. In a task the sink is another object, made
    by the same kind from the same options; `open` is not called there, and `state` is None."""

    shared_by: Literal["key", "table", "schema"] = "key"
    """What keeps documents in one task and in order, where tasks deliver: the same key of a table, the
    same table, or the same schema. Choose the largest in which the destination shows an order.

    With `on_refused: park` a table stays together in any case: a truncate, and an update that changes a key, concern more
    keys than their own, and must not overtake what another task parks."""

    batch_bytes: ClassVar[int] = 2 * 1024 * 1024
    """How much of the log a batch may hold before latency suffers."""

    @property
    def step_bytes(self) -> int:
        """How many bytes of copied documents are to be delivered at once."""
        return self.batch_bytes

    passes_with_time: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions after which it may work later: penstock opens the sink anew and goes on, for ever."""

    needs_a_person: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions that waiting does not fix; the run ends with them. (`PenstockError`s say it themselves, and
    OSErrors are known. Any other exception is a defect of the sink, and ends the run.)"""

    @abstractmethod
    def open(self) -> str | None:
        """Reach the destination, claim it, and undo what a killed predecessor left half done.

        Returns:
            The state that the last `deliver` stored; None at the first time, and where the
            destination does not store it (`stores_state`).

        Raises:
            SecondInstance: another process delivers there.
        """

    @abstractmethod
    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Deliver documents, in their order, and store the state with them.

        On return all of it is durable. After an exception nothing has happened, or `open` finds out
        what has. There may be no documents at all: then only the state is stored.

        Args:
            documents: batches with the columns `DOCUMENTS`; read once.
            state: opaque, some kilobytes; None in a task.

        Raises:
            DocumentsRefused: the destination does not take some of the documents.
        """

    # For sinks that show rows as they are now. Not under semantic versioning yet.

    def begin_share(self, shared_by: str, count: int) -> None:  # noqa: B027 - nothing to do for some
        """In a task, before `deliver`: among how many tasks the documents of the batch are shared out, and by what."""

    def left_over(self) -> Sequence[str]:
        """In a task, after `deliver`: what is to be done when no task of the batch delivers any more."""
        return ()

    def settle(self, left: Sequence[str]) -> None:  # noqa: B027 - as above
        """On the driver: do what tasks have left over. The state that says so is stored afterwards."""

    parks_by_key: ClassVar[bool] = False
    """Whether documents are shared out by key although something may be parked: an update that changes a key is two
    documents, what is late changes nothing, and `emptied` says what a truncate has done away with."""

    def emptied(self, left: Sequence[str]) -> Mapping[TableName, tuple[int, int]]:
        """On the driver: the tables that `settle` empties, as documents name them, and the commit_lsn and the ordinal of
        their last truncate. What tasks have refused that is older is not parked."""
        del left
        return {}

    shows_rows: ClassVar[bool] = False
    """Whether the destination shows rows as they are now: what is parked of a table follows it to another name."""

    def keeps_rows(self, difference: Difference, *, may_compute: bool) -> bool:
        """Where rows are shown: whether what is stored of them is right all the same after a change by which they hold what
        nobody was sent, so that they are not copied again. `may_compute`: the statement may have computed their values."""
        del difference, may_compute
        return False

    def has_followed(self, change: str) -> bool:
        """On the driver: whether the destination has dealt with a change of a table, by the id of its document. Then
        it has the rows from before it, and is not given them again when the transaction is repeated."""
        del change
        return False

    keeps_schemas: ClassVar[bool] = False
    """Whether `keep_schemas` is to be called: the destination has a log of the source's schemas."""

    def keep_schemas(self, schemas: Sequence[WholeSchema], lsn: Lsn) -> None:  # noqa: B027 - as above
        """On the driver: schemas as they are at a position, at the start and behind each transaction that changes
        tables in them, before the state that says so is stored. It may be called again with the same."""

    def begin_copies(self, copies: Mapping[TableName, str]) -> None:  # noqa: B027 - as above
        """Before a `deliver` whose documents are the first of copies, by table their ids. What was there of the tables
        is out of date from then on. It may be called again, where that `deliver` did not happen."""

    def end_copies(self, copies: Mapping[TableName, str]) -> None:  # noqa: B027 - as above
        """Before a `deliver` whose documents are the last of copies, by table their ids: show those between the
        documents and the state. It may be called again, and with fewer."""

    def check(self) -> Iterator[Finding]:
        """What stands in the way, for `penstock check`; changes nothing. An exception is a finding as well."""
        yield from ()

    def check_tables(self, tables: Sequence[TableName]) -> Iterator[Finding]:
        """The same, where it depends on which tables there will be: those that are followed, as documents name them; none
        where the source does not answer. The default is `check`."""
        del tables
        yield from self.check()

    def forget(self) -> list[str]:
        """Remove the stored state and everything else of penstock's own; what was removed.

        For `penstock teardown`: documents stay. May be called when nothing is there.
        """
        return []

    def close(self) -> None:  # noqa: B027 - nothing to do for some
        """Let go of everything, whatever happened before."""

    def idle(self) -> None:  # noqa: B027 - as above
        """Called every few milliseconds while nothing is delivered, once the sink is open; be quick."""

    def pause(self) -> None:  # noqa: B027 - as above
        """A person holds the sink: begin nothing by yourself any more, also after another `open`, until `resume`.

        For sinks that go on sending after `deliver` has returned; penstock calls no `deliver` meanwhile, but for one that
        was under way. Comes between calls of `deliver`, and also before `open`. `idle` is called as before.
        """

    def resume(self) -> None:  # noqa: B027 - as above
        """The sink is not held any more."""

    def interrupt(self) -> None:  # noqa: B027 - as above
        """End a `deliver` that takes long, from another thread; it raises something, or returns."""

    def has_handed_on(self) -> bool:
        """Whether what was delivered is also where the sink sends it afterwards, as far as it can be now.

        `run --until-caught-up` waits for that. Called from another thread, while the sink is open. Not under semantic
        versioning yet.
        """
        return True

    def take_retries(self) -> int:
        """How many attempts to send on what was delivered the sink has made, after an error that time fixes, since it was
        last asked; from the thread that calls `deliver`. Not under semantic versioning yet.
        """
        return 0

    def explain(self, error: Exception) -> str:
        """What to say of an exception of the destination's; without values of rows, and secrets.

        Unless overridden only its class is said: the text of others may hold anything.
        """
        return type(error).__name__


class DocumentKind(SinkKind[OptionsT], Generic[OptionsT]):
    """A kind of document sink: its name, its options, and how the sink is made."""

    worker_modules: ClassVar[tuple[str, ...]] = ("penstock.sinks.documents.worker",)
    has_working_files: ClassVar[bool] = True

    @abstractmethod
    def sink(self, place: SinkPlace[OptionsT]) -> DocumentSink:
        """The sink, unopened. Also called in Spark tasks, where it delivers by tasks."""

    def format(self, place: SinkPlace[OptionsT]) -> DocumentFormat:
        """In which form tasks write documents; penstock's JSON. Not under semantic versioning yet."""
        from penstock.sinks.documents.format import JSON_FORMAT

        del place
        return JSON_FORMAT

    def workspace(self, place: SinkPlace[OptionsT]) -> Workspace:
        """Where working files lie that the driver and all executors see; below the state directory."""
        from penstock.sinks.documents.workspace import default_workspace

        return default_workspace(place.name, place.state)

    def clashes(
        self, place: SinkPlace[OptionsT], tables: Collection[TableName]
    ) -> Mapping[TableName, PenstockError]:
        """Tables that cannot be delivered beside others of these, and why; none. Not under semantic versioning yet."""
        del place, tables
        return {}

    # What follows is the same for all sinks of documents.

    def build(self, place: SinkPlace[OptionsT], describe: Any, shared: Any = None) -> Any:
        """The driver half around the sink."""
        from penstock.sinks.documents.driver import DocumentDriver
        from penstock.sinks.documents.failures import ours

        del shared
        with ours(None, place.state, place.name):
            return DocumentDriver(self, place, describe)

    def build_copying(self, place: SinkPlace[OptionsT]) -> Any:
        """What copies tables into the sink."""
        from penstock.sinks.documents.workspace import copying_of

        return copying_of(self, place)

    def check(
        self, places: Mapping[str, SinkPlace[OptionsT]], chosen: Mapping[str, Any]
    ) -> Iterator[Finding]:
        """What the sink finds, once where all sources share it."""
        found: dict[str, Finding] = {}
        for source_id, place in places.items():
            followed = chosen[source_id].followed if source_id in chosen else []
            tables = [place.routes.of(table) or table for table in followed]
            for finding in self._findings(place, tables):
                found.setdefault(str(finding.error), finding)
        yield from found.values()

    def _findings(
        self, place: SinkPlace[OptionsT], tables: Sequence[TableName]
    ) -> Iterator[Finding]:
        from penstock.sinks.documents.failures import for_a_moment

        try:
            with for_a_moment(lambda: self.sink(place), place.state, place.name) as sink:
                for finding in sink.check_tables(tables):
                    if not isinstance(finding, Finding):
                        raise _wrong(place, "`check`", finding, "findings")
                    yield finding
        except PenstockError as error:  # such as a package that it needs and that is not there
            yield Finding(error)

    def read_status(
        self, places: Sequence[SinkPlace[OptionsT]], parts: Sequence[SinkStatus]
    ) -> None:
        """Add what lies in the working files: copies under way, and parked documents."""
        from penstock.sinks.documents.status import add_working_files

        for place, part in zip(places, parts, strict=True):
            add_working_files(self, place, part)

    def parked(self, place: SinkPlace[OptionsT], wanted: Wanted = ALL) -> list[ParkedEntry]:
        """Documents that the destination refused, and those behind them."""
        from penstock.sinks.documents.parked import entries_of, for_a_command

        with for_a_command(self.workspace(place).parked, place.keyring) as parked:
            return entries_of(parked, wanted)

    def ask_parked(self, place: SinkPlace[OptionsT], action: str, ids: Collection[str]) -> None:
        """Leave a file for who delivers."""
        from penstock.sinks.documents.parked import ParkedRequest, for_a_command

        with for_a_command(self.workspace(place).parked, place.keyring) as parked:
            parked.ask(ParkedRequest(action, frozenset(ids)))

    def drop_parked(self, place: SinkPlace[OptionsT], ids: Collection[str]) -> None:
        """Forget documents for good."""
        from penstock.sinks.documents.parked import ParkedRequest, for_a_command

        with for_a_command(self.workspace(place).parked, place.keyring) as parked:
            parked.drop(ParkedRequest("drop", frozenset(ids)))

    def forget(self, place: SinkPlace[OptionsT]) -> list[str]:
        """Have the sink forget, and remove working files."""
        from penstock.sinks.documents.failures import for_a_moment
        from penstock.sinks.documents.workspace import remove_workspace

        with for_a_moment(lambda: self.sink(place), place.state, place.name) as sink:
            removed: Any = sink.forget()
        remove_workspace(self.workspace(place))
        if not isinstance(removed, list | tuple | None):
            raise _wrong(place, "`forget`", removed, "a list of texts")
        return [str(each) for each in removed or ()]


def _wrong(place: SinkPlace[Any], call: str, found: object, wanted: str) -> SinkDefect:
    return SinkDefect(
        f"{call} gives {type(found).__name__}, wanted {wanted}",
        f"sink {place.name}",
        "report it to who wrote the sink",
    )
