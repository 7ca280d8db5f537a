"""Rules of `transform:` as a file has them, and what they do to values, changes and pictures of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import ValidationError

from fix_changes import plain
from penstock.document import read_document
from penstock.faults import first_fault
from penstock.modifiers.transform import TransformOptions, modifier_for
from penstock.modifiers.transform.pgtypes import type_by_oid
from penstock.modifiers.transform.rules import read_rule
from penstock.modifiers.transform.transformer import Batch
from penstock.options import Options
from penstock.schema.shape import ColumnShape, ConstraintShape, TableShape
from penstock.testing import TYPE_OIDS, changes, relation, transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

SALT = "the salt of these tests"
ENVIRON = {"PENSTOCK_SALT": SALT}
LSN = 0x16B3748
KEY_OF_TESTS = bytes(range(64)).hex()


class _Entry(Options):
    transform: TransformOptions


def read_transform(text: str, environ: dict[str, str] | None = None, directory: Any = None):
    """One entry, from YAML; faults are the user's, with their line."""
    environ = ENVIRON if environ is None else environ
    document = read_document(text, "shop.yml", environ)
    context = {"environ": environ, **({} if directory is None else {"directory": directory})}
    try:
        return _Entry.model_validate(document.values, context=context).transform
    except ValidationError as error:
        raise first_fault(error, document) from None


def run_batch(
    rule: dict[str, Any],
    values: Sequence[str | None],
    type_name: str = "text",
    *,
    salt: str = SALT,
    modifier: int = -1,
    **others: Sequence[str | None],
) -> tuple[list[str | None], Batch]:
    """Values through one transformer, and the batch with what failed."""
    read = read_rule("c", rule, {"environ": {"PENSTOCK_SALT": salt}})
    oid = TYPE_OIDS.get(type_name, 90000)
    batch = Batch(
        pa.array([value.encode() for value in values], pa.binary()),
        type_by_oid(oid, modifier),
        {name: pa.array([v and v.encode() for v in column]) for name, column in others.items()},
        read.salt,
        pa.array([str(number).encode() for number in range(len(values))]),
    )
    done = read.transformer.apply(batch).cast(pa.binary())
    return [one if one is None else one.decode() for one in done.to_pylist()], batch


def transformed(rule: dict[str, Any], *values: str, type_name: str = "text", **keywords: Any):
    """Values through one transformer, none of which fails."""
    done, batch = run_batch(rule, values, type_name, **keywords)
    assert batch.failed is None, batch.reason
    return done[0] if len(values) == 1 else done


def applied(options: TransformOptions, table: Any, *messages: bytes, shape: Any = None):
    """Changes of a table through an entry's rules: (operation, after, before) of each."""
    modifier = modifier_for(options, table.table)
    if modifier is not None and shape is not None:
        modifier = modifier.with_shape(shape)
    pieces = changes([relation(table), *transaction(LSN, *messages)])
    if modifier is not None:
        pieces = [modifier.apply(piece) for piece in pieces]

    def text(row: Any) -> Any:
        return row and tuple(v.decode() if isinstance(v, bytes) else v for v in row)

    return [(one.operation, text(one.after), text(one.before)) for one in plain(pieces)]


_SPELLED = {
    "int8": "bigint",
    "int4": "integer",
    "int2": "smallint",
    "timestamptz": "timestamp with time zone",
    "varchar": "character varying",
    "bool": "boolean",
}


def shape_of(
    name: str,
    columns: dict[str, str],
    *,
    key: Sequence[str] = (),
    unique: Sequence[str] = (),
    not_null: Sequence[str] = (),
    **more: Any,
) -> TableShape:
    """A picture of a table; a type may have a length, varchar(20)."""
    made = []
    for number, (column, spelled) in enumerate(columns.items(), start=1):
        base, _, size = spelled.partition("(")
        generated = base.startswith("generated ")
        base = base.removeprefix("generated ")
        made.append(
            ColumnShape(
                id=number,
                name=column,
                type=_SPELLED.get(base, base),
                type_id=TYPE_OIDS.get(base, more.get("oids", {}).get(base, 90000)),
                type_kind="b",
                type_modifier=int(size.rstrip(")")) + 4 if size else -1,
                not_null=column in (*key, *not_null),
                generated="s" if generated else "",
                expression="1" if generated else None,
            )
        )
    numbers = {column.name: column.id for column in made}
    constraints = []
    if key:
        ids = tuple(numbers[one] for one in key)
        constraints.append(
            ConstraintShape(id=900, name=f"{name}_pkey", kind="p", definition="", columns=ids)
        )
    for place, one in enumerate(unique):
        constraints.append(
            ConstraintShape(
                id=901 + place,
                name=f"{name}_{one}_key",
                kind="u",
                definition="",
                columns=(numbers[one],),
            )
        )
    more.pop("oids", None)
    return TableShape(
        id=more.pop("oid", 16400),
        schema_name="public",
        name=name,
        columns=tuple(made),
        constraints=(*constraints, *more.pop("constraints", ())),
        **more,
    )
