"""Tables of a source and of a target that is to follow them, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.schema.catalog import read_shapes
from penstock.schema.describe import description_of, structure_of
from penstock.sinks.postgres.ddl.alter import AlterContext, Followed, follow
from penstock.sinks.postgres.ddl.create import create_table
from penstock.sinks.postgres.ddl.structure import add_foreign_keys, add_indexes, add_key
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database
    from penstock.schema.shape import TableShape

T = TableName("public", "t")


def shapes(database: Database) -> dict[int, TableShape]:
    """All tables by their ids."""
    with database.connect() as connection:
        connection.execute("SET search_path = ''")
        names = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        found = read_shapes(connection, [TableName(*name) for name in names])
    return {shape.id: shape for shape in found.values()}


def shape_of(database: Database, table: TableName = T) -> TableShape:
    return next(shape for shape in shapes(database).values() if shape.table == table)


def clone(source: Database, target: Database, *, with_rows: bool = True) -> None:
    """Every table of the source at the target."""
    found = sorted(shapes(source).values(), key=lambda shape: shape.id)
    with target.connect() as connection:
        for shape in found:
            create_table(connection, description_of(shape), shape.table, None, with_key=False)
            names = [
                f'"{c.name.replace(chr(34), chr(34) * 2)}"'
                for c in shape.columns
                if not c.generated
            ]
            if with_rows:
                rows = source.query(f"SELECT {', '.join(names)} FROM {quoted(shape.table)}")
                for row in rows:
                    values = ", ".join(["%s"] * len(row))
                    statement = f"INSERT INTO {quoted(shape.table)} ({', '.join(names).replace('%', '%%')}) VALUES ({values})"
                    connection.execute(statement, row)
        for shape in found:
            structure = structure_of(shape)
            add_key(connection, shape.table, structure)
            columns = {column.name for column in shape.columns}
            assert add_indexes(connection, shape.table, structure, columns) == []
        for shape in found:
            assert add_foreign_keys(connection, shape.table, structure_of(shape), same) == []


def quoted(table: TableName) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in table)


def same(table: TableName) -> TableName:
    return table


CONTEXT = AlterContext(
    place=same,
    policy="apply",
    wanted=None,
    made_by_us=True,
    with_indexes=True,
    with_foreign_keys=True,
)


def follow_at(
    target: Database, before: TableShape, after: TableShape, table: TableName = T, **options: Any
) -> Followed:
    context = replace(CONTEXT, **options)
    with target.connect(autocommit=False) as connection:
        followed = follow(connection.cursor(), before, after, table, context)
        connection.commit()
    return followed


def plain(shape: TableShape) -> dict[str, Any]:
    """A picture without ids and what is not carried over."""
    columns = {}
    for column in shape.columns:
        reported = column.model_dump(
            include={"name", "type", "not_null", "default", "expression", "collation"}
        )
        columns[column.name] = {
            **reported,
            "identity": bool(column.identity),
            "generated": bool(column.generated),
            "counts": column.sequence
            and column.sequence.model_dump(exclude={"id", "schema_name", "name"}),
        }
    return {
        "table": shape.table,
        "columns": columns,
        "constraints": {each.name: each.definition for each in shape.constraints},
        "indexes": {each.name: (each.is_unique, each.definition) for each in shape.indexes},
        "foreign keys": {
            key.name: (
                shape.names_of(key.columns),
                key.referenced_schema,
                key.referenced_name,
                key.referenced_columns,
                key.on_delete,
                key.on_update,
                key.is_deferrable,
                key.is_deferred,
                key.is_valid,
            )
            for key in shape.foreign_keys
        },
    }


def rows_of(database: Database, shape: TableShape) -> list[str]:
    """Rows as JSON, whatever the order of columns."""
    query = f"SELECT to_jsonb(x)::text FROM {quoted(shape.table)} x ORDER BY 1"
    return [row[0] for row in database.query(query)]


def assert_follows(
    source: Database, target: Database, ddl: str, *, repeats: bool = True, **options: Any
) -> list[Followed]:
    """Run DDL at the source; afterwards both sides are the same, and a repetition does nothing."""
    before = shapes(source)
    source.execute(ddl)
    after = shapes(source)
    done = []
    for number, shape in after.items():
        if before[number] == shape:
            continue
        followed = follow_at(target, before[number], shape, before[number].table, **options)
        done.append(followed)
        assert followed.target == shape.table
        assert plain(shape_of(target, shape.table)) == plain(shape)
        if not followed.needs_copy:
            assert rows_of(target, shape) == rows_of(source, shape)
        if repeats:
            again = follow_at(target, before[number], shape, before[number].table, **options)
            assert again.statements == []
    return done
