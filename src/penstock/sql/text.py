"""An SQL expression over the columns of one row, as the file has it: parsed when the file is read.

DuckDB parses it; nothing is computed here. What could not be repeated with the same result, reads anything
but the row, or speaks of several rows, is refused.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.errors import BadValue, SqlMissing
from penstock.options import fault, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb

ROW = "penstock_row"
_LONGEST = 16 * 1024

# Classes of DuckDB's parser: expressions of one row and nothing else.
_REFUSED = {
    "SUBQUERY": "a query inside the expression",
    "WINDOW": "a window function, which looks at several rows",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "DEFAULT": "DEFAULT",
    "POSITIONAL_REFERENCE": "a column by its number",
}
# These make much of little, wait, or speak of the process.
_COSTLY = frozenset(
    {
        "aggregate",
        "array_aggr",
        "array_aggregate",
        "array_resize",
        "array_to_json",
        "array_to_string",
        "array_to_string_comma_default",
        "bar",
        "base64",
        "bin",
        "bitstring",
        "create_sort_key",
        "current_setting",
        "format",
        "generate_series",
        "getvariable",
        "hex",
        "icu_sort_key",
        "json_array",
        "json_object",
        "json_quote",
        "list_aggr",
        "list_aggregate",
        "list_resize",
        "list_string_agg",
        "lpad",
        "pg_sleep",
        "printf",
        "range",
        "regexp_escape",
        "regexp_replace",
        "repeat",
        "replace",
        "row_to_json",
        "rpad",
        "sleep_ms",
        "to_base64",
        "to_binary",
        "to_hex",
        "to_json",
        "url_encode",
        "write_log",
    }
)
_NOT_REPEATED = "is not the same when a batch is repeated"
_SETTINGS = (
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET TimeZone = 'UTC'",
    "SET lock_configuration = true",
)


@dataclass(frozen=True)
class SqlText:
    """An expression that parses, and the columns that it names."""

    text: str
    columns: tuple[str, ...]


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB of its own, in memory, that can read no file and whose settings nobody can change.

    Raises:
        SqlMissing: it is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise SqlMissing(
            "SQL in a rule needs DuckDB, which is not installed",
            do="pip install 'penstock[sql]', on the executors as well",
        ) from None
    connection = duckdb.connect(":memory:", config={"threads": 1})
    for statement in _SETTINGS:
        connection.execute(statement)
    return connection


# A connection refuses a second thread while it is in use.
_parsing = threading.RLock()


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return connect()


class _Functions(NamedTuple):
    """What DuckDB has, by names."""

    volatile: frozenset[str]  # not the same for the same row
    aggregates: frozenset[str]
    tables: frozenset[str]  # they give rows, and nothing else of that name gives a value
    macros: Mapping[str, tuple[str, ...]]  # what each stands for


@cache
def _functions() -> _Functions:
    with _parsing:
        rows = _parser().execute(
            "SELECT function_name, bool_and(stability IS NOT NULL AND stability <> 'CONSISTENT'),"
            " bool_or(function_type = 'aggregate'),"
            " bool_and(function_type IN ('table', 'table_macro', 'pragma')),"
            " list(macro_definition) FILTER (function_type = 'macro')"
            " FROM duckdb_functions() GROUP BY 1"
        )
        found = rows.fetchall()
    return _Functions(
        frozenset(name for name, is_volatile, *_ in found if is_volatile),
        frozenset(name for name, _, is_aggregate, *_ in found if is_aggregate),
        frozenset(name for name, _, _, is_table, _ in found if is_table),
        {name: tuple(bodies) for name, *_, bodies in found if bodies},
    )


def read_expression(text: str) -> SqlText:
    """Parse an expression.

    Raises:
        PydanticCustomError: it is none, or not one of a single row.
    """
    expression = _expression(text)
    columns: dict[str, None] = {}
    own: set[str] = set()  # what lambdas call their arguments
    for node in _nodes(expression):
        _check(node)
        if node.get("class") == "LAMBDA":
            own |= {_column(each) for each in _nodes(node.get("lhs")) if "column_names" in each}
        elif node.get("class") == "COLUMN_REF":
            columns[_column(node)] = None
    return SqlText(text, tuple(name for name in columns if name not in own))


def read_strangers_expression(text: str) -> SqlText:
    """Parse an expression of somebody who may see rows, but is not to burden this process.

    Raises:
        PydanticCustomError: it is none, names a function that is not there, or one that makes much of little.
    """
    found = read_expression(text)
    import duckdb  # behind it: that says what to do where it is not installed

    for node in _nodes(_expression(text)):
        name = str(node.get("function_name", "")).lower()
        if node.get("class") == "LAMBDA":
            raise _bad("SQL with a lambda")
        if name in _COSTLY:
            raise _bad(f"SQL with {name}()")
    # What columns are, nobody knows here; NULLs go with anything.
    nothing = pa.table({name: pa.nulls(0) for name in found.columns or ("penstock_none",)})
    with _parsing:
        _parser().register(ROW, nothing)
        try:
            _parser().sql(_query(text))
        except duckdb.Error as error:
            said = str(error).splitlines()[0]
            if "is a table function" in said:
                raise _bad("SQL with a function that gives a table") from None
            if isinstance(error, duckdb.CatalogException):
                missing = said.removeprefix("Catalog Error: ").rstrip("!")
                raise _bad(f"SQL that names what is not there: {missing}") from None
        finally:
            _parser().unregister(ROW)
    return found


def _expression(text: str) -> dict[str, Any]:
    if not text.strip() or len(text) > _LONGEST:
        raise wanted("an SQL expression over the columns of a row")
    try:
        with _parsing:
            rows = _parser().execute("SELECT json_serialize_sql(?)", [_query(text)]).fetchall()
    except SqlMissing as error:
        raise fault(error) from None
    tree = json.loads(rows[0][0])
    if tree.get("error"):
        raise _bad(f"SQL that does not parse: {_said(tree, text)}")
    return _sole_expression(tree)


_BEFORE = "SELECT ("


def _query(text: str) -> str:
    # The line end: a comment may be the last thing in it.
    return f"{_BEFORE}{text}\n) AS answer FROM {ROW}"


def _said(tree: Mapping[str, Any], text: str) -> str:
    """What is wrong, and where in the text: not what has been written around it."""
    said = str(tree.get("error_message", "not SQL")).splitlines()[0]
    position = str(tree.get("position", ""))
    if not position.isdigit():
        return said
    written = text.encode()
    at = int(position) - len(_BEFORE)  # a number of bytes
    if at >= len(written.rstrip()):
        return "it ends where more is wanted, or closes more parentheses than it opens"
    before = written[: max(at, 0)].decode(errors="replace")
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    place = f"line {line}, character {column}" if "\n" in text.strip() else f"character {column}"
    return f"{said}, at {place}"


def _sole_expression(tree: dict[str, Any]) -> dict[str, Any]:
    """The one expression; text could close the parenthesis and go on with something else."""
    statements = tree.get("statements", [])
    node = statements[0].get("node", {}) if len(statements) == 1 else {}
    source = node.get("from_table", {})
    listed = node.get("select_list", [])
    is_plain = (
        node.get("type") == "SELECT_NODE"
        and len(listed) == 1
        and listed[0].get("alias") == "answer"
        and source.get("type") == "BASE_TABLE"
        and source.get("table_name") == ROW
        and not node.get("where_clause")
        and not node.get("cte_map", {}).get("map")
        and not node.get("group_expressions")
        and not node.get("having")
        and not node.get("qualify")
    )
    if not is_plain:
        raise _bad("SQL that is more than one expression")
    found: dict[str, Any] = listed[0]
    return found


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


def _check(node: dict[str, Any]) -> None:
    kind = node.get("class")
    if kind in _REFUSED:
        raise _bad(f"SQL with {_REFUSED[kind]}")
    if kind != "FUNCTION":
        return
    name = str(node.get("function_name", "")).lower()
    # DuckDB 2 calls them arguments, those before it children.
    arguments = node.get("arguments") or node.get("children") or ()
    reason = _NOT_REPEATED if name == "age" and len(arguments) == 1 else _fault_of(name)
    if reason:
        raise _bad(f"SQL with {name}(), which {reason}")


@cache
def _fault_of(name: str) -> str:
    """Why a function cannot be in an expression; "" where it can."""
    functions = _functions()
    if name in functions.aggregates:
        return "looks at several rows"
    if name in functions.volatile:
        return _NOT_REPEATED
    if name in functions.tables:
        return "gives several rows"
    bodies = functions.macros.get(name, ())
    parts = (node for body in bodies for node in _nodes(_expression(body)))
    return next((why for node in parts if (why := _fault_of_part(node, name))), "")


def _fault_of_part(node: dict[str, Any], macro: str) -> str:
    """What is wrong with a part of what a macro stands for."""
    kind = node.get("class")
    if kind in _REFUSED:
        return "reads more than the row"
    if kind == "COLUMN_REF" and _column(node).startswith("current_"):
        return _NOT_REPEATED
    inner = str(node.get("function_name", "")).lower()
    return _fault_of(inner) if kind == "FUNCTION" and inner != macro else ""


def _column(node: dict[str, Any]) -> str:
    names = node.get("column_names", [])
    if len(names) > 1 and names[0] == ROW:
        names = names[1:]
    return str(names[0])


def _bad(what: str) -> Exception:
    return fault(BadValue(f"{what}, wanted an expression over the columns of one row", do="fix it"))
