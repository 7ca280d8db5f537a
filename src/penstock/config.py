"""Read the pipeline file: expand variables, check keys, name the line at fault.

Each part declares its own options; this module only finds their classes and fills them: those
of a sink by its kind, which may be another package's. It opens no connection and touches nothing
but the file. Every fault is a `PipelineFileError`, or one of its kinds, that names file and line;
none shows a password or the value of a variable.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from penstock.document import Document, Mark, document_of, read_document, shown
from penstock.dsn import Dsn
from penstock.errors import BadUrl, BadValue, NotThereYet, PenstockError, PipelineFileError
from penstock.faults import first_fault
from penstock.listen import AddressOption, ServerOptions, TokenOption
from penstock.log.options import LogOptions
from penstock.log.registry import LogOption, default_options
from penstock.modifiers.inject import PrimaryKeyOptions, RowOptions
from penstock.modifiers.route import RouteOptions, routes_of
from penstock.modifiers.rule import HasPlaces, Rule, RuleEntry
from penstock.options import LocalPath, Options, fault, nearest, wanted
from penstock.sinks.kind import SinkKind, SinkPlace
from penstock.sinks.registry import KINDS
from penstock.source.options import SourceOptions
from penstock.spark.options import SparkOptions

_LATER_SINK_KINDS = ("delta", "iceberg", "parquet")

# Where states lie that the file does not place.
DEFAULT_PARENT = ".penstock"

# So many sources are polled as often as one alone; more of them share the same effort.
_FEW_SOURCES = 5

_LONGEST_FILE = 256 * 1024
_NAME = re.compile(r"[a-z0-9_]{1,40}")


@dataclass(frozen=True)
class PipelineFile:
    """One pipeline as a person described it, checked and with every default filled in.

    `state` and the paths of sinks are absolute. Written in a file, a relative path starts at the
    file's directory, so that the same file means the same places from wherever it is used; the
    default state, `.penstock/<name>`, is in the working directory.

    Where the file has `sources:` this is the whole pipeline, which has no `source`; nearly all code
    takes one of the views that `each` gives, in which the state directory and the paths of sinks are
    those of one source. A pipeline with `source:` is its own view.

    `document` is what another process builds an equal PipelineFile from (`pipeline_from_document`).
    It holds passwords: never print it.
    """

    name: str
    state: Path
    sources: dict[str, SourceOptions]
    log: LogOptions
    sinks: dict[str, Options]  # of each its own model: see `kind_of`
    spark: SparkOptions
    modifiers: tuple[Rule, ...]  # in the order of the file; `modifiers_for` gives those of a sink
    document: dict[str, Any] = field(repr=False)
    top: Path  # the whole pipeline's state directory; with `source:` the same as `state`
    source_ids: tuple[str, ...]  # of the whole pipeline, in the order of the file
    is_whole: bool = False
    server: ServerOptions = field(default_factory=ServerOptions)

    @property
    def is_alone(self) -> bool:
        """Whether the pipeline has this one source only."""
        return len(self.source_ids) == 1

    @property
    def source_id(self) -> str:
        """What the source of this view is called."""
        [source_id] = self.sources
        return source_id

    @property
    def source(self) -> SourceOptions:
        """The source of this view."""
        [source] = self.sources.values()
        return source

    def each(self) -> "list[PipelineFile]":
        """The pipeline once for each of its sources, in the order of the file."""
        return [self.of(source_id) for source_id in self.sources]

    def of(self, source_id: str) -> "PipelineFile":
        """The pipeline as one of its sources has it."""
        if not self.is_whole:
            return self
        return replace(
            self,
            is_whole=False,
            state=self.top / source_id,
            sources={source_id: self.sources[source_id]},
            sinks={
                name: self._of_source(name, options, source_id)
                for name, options in self.sinks.items()
            },
        )

    def _of_source(self, name: str, options: Options, source_id: str) -> Options:
        kind = self.kind_of(name)
        try:
            own: Options = kind.of_source(options, source_id)
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001 - of another package's; its text may be of a secret key
            raise BadValue(
                f"kind {kind.name} has no options for source {source_id}: it raised {type(error).__name__}",
                f"sinks.{name}",
                "report it to who wrote the sink",
            ) from None
        return own

    @property
    def all_sinks(self) -> tuple[str, ...]:
        """The names of all sinks of the file, also where this process delivers to some of them."""
        return tuple(self.document["sinks"])

    def only(self, sinks: Collection[str]) -> "PipelineFile":
        """The same, with some of its sinks.

        Raises:
            BadValue: there is none of a name.
        """
        for name in sinks:
            if name not in self.sinks:
                what = f"no sink {name!r}, wanted one of {', '.join(self.sinks)}"
                raise BadValue(what, "--sink", "name a sink as the file does")
        chosen = {name: options for name, options in self.sinks.items() if name in sinks}
        return replace(self, sinks=chosen)

    def kind_of(self, sink: str) -> SinkKind[Any]:
        """What a sink is: all that is done with one is asked of its kind."""
        kind = KINDS.find(self.document["sinks"][sink]["kind"])
        assert kind is not None, "its options were read with it"
        return kind

    @property
    def spark_at_rest(self) -> SparkOptions:
        """The options of Spark, which encrypts what it leaves on disks where penstock does."""
        return self.spark.encrypting() if self.log.encrypt else self.spark

    def place_of(self, sink: str) -> SinkPlace[Any]:
        """A sink as the source of this view has it."""
        return SinkPlace(
            sink,
            self.sinks[sink],
            pipeline=self.name,
            source_id=self.source_id,
            source_ids=self.source_ids,
            state=self.state,
            copies_first=self.source.snapshot.copies_first,
            routes=routes_of(self.modifiers, sink),
            keyring=self.log.keyring(),
        )

    def __reduce__(self) -> NoReturn:
        """Never into a Spark task: `document` holds passwords."""
        raise TypeError("a PipelineFile is not pickled: it holds passwords; send its options")

    def paced(self, seconds: float) -> float:
        """How long to wait between two polls of one source, where a sole one has `seconds`.

        All sources together are polled no more often than a few.
        """
        return seconds * max(1.0, len(self.source_ids) / _FEW_SOURCES)


def read_pipeline(path: Path, environ: Mapping[str, str] = os.environ) -> PipelineFile:
    """Read a pipeline file.

    Raises:
        PipelineFileError: or one of its kinds; the first fault in the file, with its line.
    """
    place = str(path)
    document = read_document(_read_text(path, place), place, environ)
    return _build(document, _working_directory(place) / Path(path).parent)


def pipeline_from_document(document: dict[str, Any], place: str) -> PipelineFile:
    """The pipeline of a document that has its variables replaced, such as another's `document`.

    Errors name `place` and the path of keys, as there are no lines. Relative paths start at the
    working directory.

    Raises:
        PipelineFileError: or one of its kinds.
    """
    return _build(document_of(document, place), _working_directory(place))


def pipeline_from_urls(source: str, target: str, tables: list[str] | None = None) -> PipelineFile:
    """The pipeline of `penstock run --source URL --target URL [--table NAME …]`.

    Its name follows from hosts, ports and databases alone, so that a second run, also with
    another password or other tables, goes on where the first one stopped. Without tables, it
    takes `public.*`.

    Raises:
        PipelineFileError: or one of its kinds; places are `--source`, `--target`, `--table`.
    """
    values = {
        "name": _name_from_urls(source, target),
        "source": {"url": source, "tables": list(tables or ["public.*"])},
        "sinks": {"target": {"kind": "postgres", "url": target}},
    }
    document = document_of(values, "--source")
    marks = dict(document.marks)
    for key, mark in document.marks.items():
        if key[:2] == ("source", "tables"):
            marks[key] = Mark("--table", key=mark.key)
    marks["source", "url"] = Mark("--source", key="url")
    marks["sinks", "target", "url"] = Mark("--target", key="url")
    return _build(Document(document.values, "--source", marks), _working_directory("--source"))


def _name_from_urls(source: str, target: str) -> str:
    ends = []
    for option, url in (("--source", source), ("--target", target)):
        try:
            ends.append(Dsn.parse(url))
        except BadUrl as error:
            raise BadUrl(error.what, option, error.do) from None
    databases = [re.sub(r"[^a-z0-9]+", "_", end.database.lower())[:14] for end in ends]
    # Two servers may have databases of the same name; the digest makes their pipelines distinct.
    digest = hashlib.sha256(" ".join(str(end) for end in ends).encode()).hexdigest()
    return f"{databases[0]}_to_{databases[1]}_{digest[:6]}"


def _short_name(given: str) -> str:
    if not _NAME.fullmatch(given):
        raise wanted("a name of 1 to 40 of a-z, 0-9 and _")
    return given


def _read_sink(given: Any, info: ValidationInfo) -> Options:
    """The options of a sink, by the model of its kind."""
    if not isinstance(given, Mapping):
        raise wanted("a mapping with a kind")
    kind = _find_kind(given.get("kind"))
    try:
        return kind.options.model_validate(given, context=info.context)
    except (ValidationError, PenstockError):
        raise
    except Exception as error:  # noqa: BLE001 - of a validator of another package's; its text may be of a secret key
        what = f"cannot be read by kind {kind.name}: a validator raised {type(error).__name__}"
        raise fault(BadValue(what, do="report it to who wrote the sink")) from None


def _find_kind(name: Any) -> SinkKind[Any]:
    try:
        kind = KINDS.find(name) if isinstance(name, str) else None
    except BadValue as error:
        raise fault(error, "kind") from None
    if kind is not None:
        return kind
    names = KINDS.names
    now = ", ".join(names)
    if name in _LATER_SINK_KINDS:
        what = f"is {name}, which is not there yet in this version; wanted {now}"
        raise fault(NotThereYet(what, do=f"use a sink of kind {now}"), "kind")
    if not isinstance(name, str):
        raise fault(BadValue(f"no kind of sink, wanted {now}", do=f"write kind: {now}"), "kind")
    do = nearest(name, [*names, *_LATER_SINK_KINDS])
    raise fault(BadValue(f"{name!r} is no kind of sink, wanted {now}", do=do), "kind")


def _at_least_one(given: dict[str, Options]) -> dict[str, Options]:
    if not given:
        raise wanted("a mapping with at least one sink")
    return given


def _distinct_sources(given: dict[str, SourceOptions] | None) -> dict[str, SourceOptions] | None:
    if given is None:
        return None
    if not given:
        raise wanted("a mapping with at least one source")
    seen: dict[Dsn, str] = {}
    for source_id, options in given.items():
        if options.url in seen:
            what = f"the same as that of {seen[options.url]}, wanted a database of its own"
            raise fault(BadValue(what, do="take one of the two sources out"), source_id, "url")
        seen[options.url] = source_id
    return given


def _list_of_rules(given: Any) -> Any:
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise wanted("a list of rules, each a mapping with one key")
    return given


_Name = Annotated[str, AfterValidator(_short_name)]
_Sink = Annotated[Options, PlainValidator(_read_sink)]


class _Pipeline(Options):
    """The top level of the file."""

    name: _Name
    state: LocalPath | None = None
    source: SourceOptions | None = None
    sources: Annotated[dict[_Name, SourceOptions] | None, AfterValidator(_distinct_sources)] = None
    log: LogOption = Field(default_factory=default_options)
    modifiers: Annotated[tuple[RuleEntry, ...], BeforeValidator(_list_of_rules)] = ()
    sinks: Annotated[dict[_Name, _Sink], AfterValidator(_at_least_one)]
    spark: SparkOptions = SparkOptions()
    listen: AddressOption | None = None
    token: TokenOption | None = None
    cert: LocalPath | None = None
    key: LocalPath | None = None

    @property
    def server(self) -> ServerOptions:
        """The keys of the HTTP server."""
        return ServerOptions(self.listen, self.token, self.cert, self.key)

    @model_validator(mode="after")
    def _server_is_whole(self) -> Self:
        if (found := self.server.fault()) is not None:
            is_paired = (self.cert is None) == (self.key is None)
            keys = ("token", "listen") if is_paired else ("cert", "key")
            raise fault(found, next(key for key in keys if getattr(self, key) is not None))
        return self

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if self.source is not None and self.sources is not None:
            what = "stands beside source, wanted one of the two"
            raise fault(BadValue(what, do="write all of them under sources:"), "sources")
        if self.source is None and self.sources is None:
            raise PydanticCustomError("missing", "Field required", {"below": ("source",)})
        return self

    @model_validator(mode="after")
    def _sinks_are_apart(self) -> Self:
        seen: dict[str, str] = {}
        for name, options in self.sinks.items():
            kind = KINDS.find(getattr(options, "kind", ""))
            for place in sorted(kind.alone_at(options, self.name)) if kind is not None else ():
                if place in seen:
                    what = (
                        f"delivers to {place}, as sink {seen[place]} does, and neither can share it"
                    )
                    do = "give each a place of its own"
                    raise fault(BadValue(what, do=do), "sinks", name)
                seen[place] = name
        return self

    @model_validator(mode="after")
    def _rules_name_sinks(self) -> Self:
        for number, entry in enumerate(self.modifiers):
            unknown = sorted((entry.rule.sinks or frozenset()) - set(self.sinks))
            if unknown:
                what = (
                    f"{shown(unknown[0])} is no sink of this file, wanted {', '.join(self.sinks)}"
                )
                where = ("modifiers", number, entry.rule.family, "sinks")
                raise fault(BadValue(what, do=nearest(unknown[0], list(self.sinks))), *where)
        return self

    @property
    def by_id(self) -> dict[str, SourceOptions]:
        """The sources by their ids; a sole one under `source:` is called as the pipeline."""
        if self.sources is not None:
            return self.sources
        assert self.source is not None
        return {self.name: self.source}


def _build(document: Document, directory: Path) -> PipelineFile:
    try:
        filled = _Pipeline.model_validate(document.values, context={"directory": directory})
    except ValidationError as error:
        # Not chained: pydantic's text quotes the input.
        raise first_fault(error, document) from None
    state = filled.state or _working_directory(document.place) / DEFAULT_PARENT / filled.name
    written = tuple(_rule_of(*each, document) for each in enumerate(filled.modifiers))
    rules = (*written, *_implied_rules(filled.sinks))
    return PipelineFile(
        name=filled.name,
        state=state,
        top=state,
        sources=filled.by_id,
        source_ids=tuple(filled.by_id),
        is_whole=filled.sources is not None,
        log=filled.log,
        sinks={name: _routed(name, options, rules) for name, options in filled.sinks.items()},
        spark=filled.spark,
        modifiers=rules,
        server=filled.server,
        document=_with_absolute_paths(document.values, state, filled.sinks, written),
    )


def _implied_rules(sinks: Mapping[str, Options]) -> Iterator[Rule]:
    """Rules that nobody has to write, since the kind of a sink cannot do without."""
    for name, options in sinks.items():
        kind = KINDS.find(getattr(options, "kind", ""))
        if kind is not None and kind.needs_ids:
            yield Rule("inject", RowOptions(), frozenset((name,)))
        if kind is not None and kind.needs_primary_key(options):
            yield Rule("inject", PrimaryKeyOptions(), frozenset((name,)))


def _routed(name: str, options: Options, rules: tuple[Rule, ...]) -> Options:
    """The options of a sink, with what routes say of its tables."""
    own = [rule for rule in rules if isinstance(rule.options, RouteOptions) and rule.is_for(name)]
    for number, rule in enumerate(own):
        for other in own[:number]:
            _refuse_two_routes(other, rule)
    kind = KINDS.find(getattr(options, "kind", ""))
    assert kind is not None, "its options were read with it"
    place = own[-1].place if own else ""
    try:
        routed: Options = kind.routed(options, routes_of(rules, name))
    except BadValue as error:
        raise BadValue(f"modifiers.route {error.what}", place, error.do) from None
    return routed


def _refuse_two_routes(one: Rule, other: Rule) -> None:
    first, second = one.options, other.options
    assert isinstance(first, RouteOptions), "both are routes"
    assert isinstance(second, RouteOptions), "both are routes"
    both_target = first.target is not None and second.target is not None
    alike = first.table.is_outright == second.table.is_outright
    if both_target and alike and first.table.overlaps(second.table):
        raise BadValue(
            f"modifiers.route sends {second.table} to {second.target}, and the rule at {one.place}"
            f" sends {first.table} to {first.target}",
            other.place,
            "say it once",
        )


def _rule_of(number: int, entry: RuleEntry, document: Document) -> Rule:
    """The rule, which knows where it stands."""
    path = document.find(("modifiers", number, entry.rule.family))
    options = entry.rule.options
    if isinstance(options, HasPlaces):
        options = options.placed(document, path)
    rule = replace(entry.rule, options=options, place=document.marks[path].where)
    return replace(rule, digest=_digest(rule, document.values["modifiers"][number]))


def _digest(rule: Rule, written: Any) -> str:
    """What a rule says, and what the files say that it names, in short."""
    found = hashlib.sha256(json.dumps(written, sort_keys=True, default=str).encode())
    for _, value in rule.options:
        if isinstance(value, Path) and value.is_file():
            found.update(value.read_bytes())
    # A salt may come from the environment, which the file does not show.
    found.update(getattr(rule.options, "fingerprint", "").encode())
    return found.hexdigest()[:16]


def _with_absolute_paths(
    values: dict[str, Any], state: Path, sinks: dict[str, Options], rules: tuple[Rule, ...]
) -> dict[str, Any]:
    """The document, such that another working directory leads to the same places."""
    written = {name: dict(given) for name, given in values["sinks"].items()}
    for name, options in sinks.items():
        written[name].update(_paths(options))
    whole = {**values, "state": str(state), "sinks": written}
    if rules:
        given = [entry[rule.family] for entry, rule in zip(values["modifiers"], rules, strict=True)]
        whole["modifiers"] = [
            {rule.family: {**each, **_paths(rule.options)}}
            for each, rule in zip(given, rules, strict=True)
        ]
    return whole


def _paths(options: Options) -> dict[str, str]:
    return {key: str(value) for key, value in options if isinstance(value, Path)}


def _read_text(path: Path, place: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST_FILE + 1)
    except FileNotFoundError:
        raise PipelineFileError("there is no such file", place, "fix the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise PipelineFileError(
            f"the file cannot be read: {reason}", place, "give a file that this user may read"
        ) from None
    if len(content) > _LONGEST_FILE:
        raise PipelineFileError(
            f"the file is longer than {_LONGEST_FILE} bytes", place, "give a pipeline file"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PipelineFileError(
            "the file is not UTF-8", f"{place}:{line}", "save the file as UTF-8"
        ) from None


def _working_directory(place: str) -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise PipelineFileError(
            "the working directory is gone", place, "change to a directory that is there"
        ) from None
