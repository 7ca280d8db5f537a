"""Every type that Postgres ships, and those that people make, arrive as they left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from fix_pipeline import assert_equal
from fix_postgres import only_15, only_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

_ODD_TEXTS = [
    "",
    " ",
    "\\N",
    "\\.",
    "\\",
    "\\\\x",
    "a\tb\nc\rd\x08\x0b",
    "NULL",
    "quote \" and ' and `",
    "żółć 😀 \u200b\ufeff",
    "%s %(a)s {0} $1 ?",
    "x" * 3000,
]
_RANGES = ["empty", "[{0},{1}]", "({0},{1})", "[{0},)", "(,{1}]", "(,)"]


def _ranges(low: str, high: str) -> list[str]:
    return [text.format(low, high) for text in _RANGES]


def _multiranges(low: str, high: str) -> list[str]:
    return ["{}", f"{{[{low},{low}]}}", f"{{(,{low}],[{high},)}}", "{(,)}"]


# Interesting values of each type, as Postgres reads them. No value is equal to another of its type.
VALUES: dict[str, list[str]] = {
    "aclitem": ["postgres=r/postgres", "=r*w*/postgres"],
    "bit": ["0", "1"],
    "bool": ["t", "f"],
    "box": ["(1,2),(-0,0)", "(Infinity,NaN),(1e-300,1e300)"],
    "bpchar": ["", "a  b", "  x"],
    "bytea": ["\\x", "\\x" + bytes(range(256)).hex(), "\\x5c2e", "\\x00"],
    "cardinal_number": ["0", "2147483647"],
    "char": ["a", "", " ", "\\", "\\200"],
    "character_data": ["", "ö"],
    "cid": ["0", "4294967295"],
    "cidr": ["10.0.0.0/8", "::/0", "2001:db8::/32", "127.0.0.1/32"],
    "circle": ["<(1,2),3>", "<(0,-0),Infinity>"],
    "date": [
        "infinity",
        "-infinity",
        "4714-11-24 BC",
        "0001-12-31 BC",
        "5874897-12-31",
        "2024-02-29",
    ],
    "datemultirange": _multiranges("2000-01-01", "5874897-01-01"),
    "daterange": [*_ranges("0044-03-15 BC", "2000-01-01"), "[-infinity,infinity]"],
    "float4": ["NaN", "Infinity", "-Infinity", "0", "1e-45", "3.4028235e38", "0.1"],
    "float8": [
        "NaN",
        "Infinity",
        "-Infinity",
        "0",
        "5e-324",
        "1.7976931348623157e308",
        "0.1",
        "1e15",
    ],
    "inet": ["10.1.2.3/8", "::ffff:1.2.3.4", "fe80::1/64", "0.0.0.0/0"],
    "int2": ["-32768", "0", "32767"],
    "int4": ["-2147483648", "0", "2147483647"],
    "int4multirange": _multiranges("1", "5"),
    "int4range": [*_ranges("-2", "7"), "[2147483647,)"],
    "int8": ["-9223372036854775808", "0", "9223372036854775807"],
    "int8multirange": _multiranges("1", "9007199254740993"),
    "int8range": _ranges("-9007199254740993", "9007199254740993"),
    "interval": [
        "1 mon -1 day +00:00:01",
        "-178000000 years",
        "178000000 years",
        "00:00:00.000001",
        "-1 mon 30 days",
        "2562047788:00:54.775807",
    ],
    "json": [
        '{"b" :1,  "a":\n2, "a": 3}',
        " null",
        '"\\u0000 \\ud83d\\ude00"',
        "[1e400, -0.0]",
        "[ ]",
    ],
    "jsonb": ['{"b": 1, "a": [1.10, -0, 1e400]}', "null", '"\\t \\\\ \\" "', "[]", "{}"],
    "jsonpath": ['$."a b"[*] ? (@ > 1)', "strict $", '$.x like_regex "^\\\\d"'],
    "line": ["{1,2,3}", "{1e300,-0,NaN}"],
    "lseg": ["[(1,2),(3,4)]", "[(-0,0),(Infinity,1)]"],
    "macaddr": ["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["08:00:2b:01:02:03:04:05", "00:00:00:00:00:00:00:00"],
    "money": ["-92233720368547758.08", "0", "92233720368547758.07", "1234567.89"],
    "name": ["", "x" * 63, 'a"b'],
    "numeric": [
        "NaN",
        "Infinity",
        "-Infinity",
        "0",
        "1.100",
        "1e-16383",
        "9" * 131072,
        "-" + "7" * 131072 + "." + "3" * 16383,
    ],
    "nummultirange": _multiranges("1.5", "2.50"),
    "numrange": [*_ranges("-1.50", "1e300"), "[NaN,NaN]", "[-Infinity,Infinity]"],
    "oid": ["0", "4294967295"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4),(-0,0))"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"],
    "point": ["(1,2)", "(-0,NaN)", "(Infinity,1e-300)"],
    "polygon": ["((1,2))", "((1,2),(3,4),(5,6))"],
    "refcursor": ["", "c 1"],
    "regclass": ["pg_class", "-", "information_schema.tables"],
    "regcollation": ['"C"', "-"],
    "regconfig": ["english", "simple"],
    "regdictionary": ["english_stem", "simple"],
    "regnamespace": ["pg_catalog", "public"],
    "regoper": ["||/", "0"],
    "regoperator": ["+(integer,integer)", "-(NONE,integer)"],
    "regproc": ["now", "-"],
    "regprocedure": ["abs(integer)", "-"],
    "regrole": ["postgres", "-"],
    "regtype": ["integer", "timestamp with time zone", "-"],
    "sql_identifier": ["a", "B c"],
    "text": _ODD_TEXTS,
    "tid": ["(0,1)", "(4294967295,65535)"],
    "time": ["00:00:00", "24:00:00", "23:59:59.999999"],
    "time_stamp": ["2000-01-01 00:00:00+00"],
    "timestamp": [
        "infinity",
        "-infinity",
        "4714-11-24 00:00:00 BC",
        "294276-12-31 23:59:59.999999",
        "0001-01-01 00:00:00.000001 BC",
        "2000-01-01",
    ],
    "timestamptz": [
        "infinity",
        "-infinity",
        "4714-11-24 00:00:00+00 BC",
        "294276-12-31 23:59:59.999999+00",
        "2024-03-31 02:30:00+05:45",
    ],
    "timetz": ["00:00:00+15:59:59", "24:00:00-15:59:59", "12:34:56.789+05:45"],
    "tsmultirange": _multiranges('"2000-01-01 00:00"', '"294276-01-01 00:00"'),
    "tsquery": ["", "'a b' & !c:*AB | 'it''s'", "a <3> b"],
    "tsrange": [*_ranges('"0044-03-15 00:00 BC"', '"2000-01-01"'), "[-infinity,infinity]"],
    "tstzmultirange": _multiranges('"2000-01-01 00:00+00"', '"294276-01-01 00:00+00"'),
    "tstzrange": _ranges('"1999-12-31 23:59:59.5+02"', '"2000-01-01 00:00+00"'),
    "tsvector": ["", "'a b':1A,2 'it''s':16383D 'żółć'", "x"],
    "txid_snapshot": ["10:20:10,14,15", "1:1:"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "varbit": ["", "0", "1" * 1000 + "0"],
    "varchar": _ODD_TEXTS,
    "xid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "xml": ["<a  b='1'/>", "plain", '<?xml version="1.0"?><!DOCTYPE a><a>ö</a>'],
    "yes_or_no": ["YES", "NO"],
}
# Equal as keys to another value above, so for other columns only.
ALSO = {"float4": ["-0"], "float8": ["-0"], "numeric": ["1.10"], "interval": ["30 days -1 mon"]}
SINCE_17 = {"interval": ["infinity", "-infinity"]}
# Postgres does not read these: their input functions refuse everything.
UNREADABLE = {
    *("gtsvector", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list"),
    *("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"),
}
_IN_INFORMATION_SCHEMA = {
    "cardinal_number",
    "character_data",
    "sql_identifier",
    "time_stamp",
    "yes_or_no",
}
# What an array is distinguished by, besides its elements.
SHAPES = [
    "{}",
    "{NULL}",
    "{1,NULL,3}",
    "{{1,2},{3,4}}",
    "[0:1]={1,2}",
    "[-2:-1][3:4]={{1,2},{3,NULL}}",
    "{{{1}},{{2}}}",
]
TEXT_SHAPES = [*SHAPES, '{"a,b","c\\"d","\\\\N",NULL,"NULL",""," x ","{}"}', '[5:5]={"\\\\."}']


def _type(name: str) -> sql.Composable:
    schema = "information_schema" if name in _IN_INFORMATION_SCHEMA else "pg_catalog"
    return sql.Identifier(schema, name)


def _shipped(database: Database) -> set[str]:
    """The types of this server that a column can have and a person can write."""
    found = database.query(
        "SELECT typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
        " WHERE typtype IN ('b', 'r', 'm', 'd') AND typcategory <> 'A'"
        " AND nspname IN ('pg_catalog', 'information_schema')"
    )
    names = {name for (name,) in found} - UNREADABLE
    try:
        database.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        names -= {"xml"}  # this build has no libxml
    return names


def _texts(database: Database, name: str) -> list[str]:
    texts = [*VALUES[name], *ALSO.get(name, ())]
    if database.value("SHOW server_version_num") >= "170000":
        texts += SINCE_17.get(name, ())
    return texts


def _run(database: Database, statements: Iterable[sql.Composable]) -> None:
    with database.connect() as connection, connection.transaction():
        for statement in statements:
            connection.execute(statement)


def _wide(table: str, columns: dict[str, list[str]], key: str) -> list[sql.Composable]:
    """A table with a column for each type, and rows until every value has been in one."""
    declared = [sql.SQL("{} {}").format(sql.Identifier(f"v_{n}"), _type(n)) for n in columns]
    listed = [sql.SQL("{} {}[]").format(sql.Identifier(f"a_{n}"), _type(n)) for n in columns]
    made: list[sql.Composable] = [
        sql.SQL("CREATE TABLE {} (id int {}, {})").format(
            sql.Identifier(table), sql.SQL(key), sql.SQL(", ").join([*declared, *listed])
        )
    ]
    if not key:
        made.append(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(table)))
    return made


def _fill(table: str, columns: dict[str, list[str]]) -> list[sql.Composable]:
    """Row k holds the k-th value of every type; arrays hold all values and a NULL."""
    rows = []
    for number in range(max(map(len, columns.values())) + 1):
        cells: list[sql.Composable] = [sql.Literal(number)]
        cells += [
            sql.Literal(texts[number] if number < len(texts) else None)
            for texts in columns.values()
        ]
        for name, texts in columns.items():
            elements = sql.SQL(", ").join(
                sql.Literal(text) for text in [*texts[number : number + 2], None]
            )
            cells.append(sql.SQL("ARRAY[{}]::{}[]").format(elements, _type(name)))
        rows.append(sql.SQL("({})").format(sql.SQL(", ").join(cells)))
    return [
        sql.SQL("INSERT INTO {} VALUES {}").format(sql.Identifier(table), sql.SQL(", ").join(rows))
    ]


def _rotate(table: str, columns: Iterable[str]) -> sql.Composable:
    """Every row takes the values of the one after it."""
    names = sql.SQL(", ").join(
        sql.Identifier(f"{letter}_{name}") for name in columns for letter in "va"
    )
    others = sql.SQL(", ").join(
        sql.Identifier("o", f"{letter}_{name}") for name in columns for letter in "va"
    )
    return sql.SQL(
        "UPDATE {0} t SET ({1}) = ROW ({2}) FROM {0} o"
        " WHERE o.id = (t.id + 1) % (SELECT count(*) FROM {0})"
    ).format(sql.Identifier(table), names, others)


def test_every_type_that_postgres_ships_arrives_as_it_left(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    shipped = _shipped(source)
    assert shipped <= set(VALUES), "a type that nobody has thought of"
    columns = {name: _texts(source, name) for name in sorted(shipped)}
    _run(source, [*_wide("keyed", columns, "PRIMARY KEY"), *_wide("keyless", columns, "")])
    source.execute("CREATE TABLE shapes (id int PRIMARY KEY, n int8[], w text[], d numeric(5,2)[])")
    pipeline = make_pipeline(source, target)

    _run(source, [*_fill("keyed", columns), *_fill("keyless", columns)])
    for number, text in enumerate(SHAPES):
        source.execute("INSERT INTO shapes VALUES (%s, %s, NULL, %s)", number, text, text)
    for number, text in enumerate(TEXT_SHAPES):
        source.execute("INSERT INTO shapes VALUES (%s, NULL, %s)", 100 + number, text)
    pipeline.catch_up()
    assert_equal(source, target, "keyed", "keyless", "shapes")
    _run(source, [_rotate("keyed", columns), _rotate("keyless", columns)])
    source.execute("UPDATE shapes SET w = n::text[], n = d::int8[] WHERE id % 2 = 0")
    pipeline.catch_up()
    assert_equal(source, target, "keyed", "keyless", "shapes")
    for table in ("keyed", "keyless", "shapes"):
        source.execute(f"DELETE FROM {table} WHERE id % 2 = 1")
    pipeline.catch_up()

    assert_equal(source, target, "keyed", "keyless", "shapes")
    assert not pipeline.deliveries[0].stopped_tables


@only_new
def test_every_type_that_can_be_a_key_is_found_again_by_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    keyed: dict[str, list[str]] = {}
    for name in sorted(_shipped(source)):
        texts = [text for text in VALUES[name] if len(text) < 2000]
        table = sql.Identifier(f"k_{name}")
        create = sql.SQL("CREATE TABLE {} (k {} PRIMARY KEY, n int)").format(table, _type(name))
        try:
            _run(source, [create])
        except psycopg.errors.UndefinedObject:
            continue  # no order, so no key
        keyed[name] = texts
    assert len(keyed) > 45
    pipeline = make_pipeline(source, target)

    insert = sql.SQL("INSERT INTO {} VALUES ({}, 0)")
    _run(
        source,
        (
            insert.format(sql.Identifier(f"k_{name}"), sql.Literal(text))
            for name, texts in keyed.items()
            for text in texts[:-1] or texts
        ),
    )
    pipeline.catch_up()
    for name, texts in keyed.items():
        table = sql.Identifier(f"k_{name}")
        one, other = sql.Literal(texts[0]), sql.Literal(texts[-1])
        statements = [sql.SQL("UPDATE {} SET n = n + 1").format(table)]
        if len(texts) > 1:
            move = sql.SQL("UPDATE {0} SET k = {1}::{3} WHERE k = {2}::{3}")
            statements.append(move.format(table, other, one, _type(name)))
        if len(texts) > 2:
            delete = sql.SQL("DELETE FROM {} WHERE k = {}::{}")
            statements.append(delete.format(table, sql.Literal(texts[1]), _type(name)))
        _run(source, statements)
    pipeline.catch_up()

    assert_equal(source, target, *(f'"k_{name}"' for name in keyed))
    assert not pipeline.deliveries[0].stopped_tables


def test_types_that_people_make_are_made_at_the_target_and_arrive(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        """
        CREATE SCHEMA "t %s{}";
        CREATE TYPE "t %s{}"."Mood's" AS ENUM ('sad', 'it''s ok', 'a,b', '"', '\\', '', 'żółć');
        CREATE DOMAIN short AS varchar(5) NOT NULL DEFAULT 'none' CHECK (VALUE <> 'bad');
        CREATE DOMAIN shorter AS short CHECK (length(VALUE) < 4);
        CREATE DOMAIN moods AS "t %s{}"."Mood's"[] CHECK (cardinality(VALUE) < 9);
        CREATE TYPE pair AS (a int, "B c" text);
        CREATE TYPE nested AS (p pair, ps pair[], m "t %s{}"."Mood's", s numeric(4,1));
        CREATE TYPE span AS RANGE (SUBTYPE = float8, SUBTYPE_DIFF = float8mi);
        CREATE TYPE words AS RANGE (SUBTYPE = text, COLLATION = "C", MULTIRANGE_TYPE_NAME = "word sets");
        CREATE TABLE made (id int PRIMARY KEY, mood "t %s{}"."Mood's", moods moods, short short,
            shorter shorter, pair pair, nested nested, nesteds nested[], span span, spans spanmultirange,
            words words, "sets" "word sets", shorts shorter[]);
        CREATE TABLE keyed (mood "t %s{}"."Mood's", shorter shorter, span span, pair pair, n int,
            PRIMARY KEY (mood, shorter, span, pair));
        """.replace("spanmultirange", "span_multirange")
    )
    pipeline = make_pipeline(source, target)

    source.execute(
        """
        INSERT INTO made VALUES
          (1, 'sad', '{sad,NULL,"a,b","\\"","\\\\",""}', 'x', 'y', '(1,"a ""b"" (c), \\\\ ")',
           '("(2,)","{""(3,x)"",NULL}",żółć,99.9)', '{NULL,"(\\"(2,)\\",,,)"}', '[1.5,NaN)',
           '{[1,2),[3,Infinity]}', '["a b",c)', '{[a,b),[c,)}', '{a,b}'),
          (2, '', '{}', '', '', '(,)', '(,,,)', '{}', 'empty', '{}', '(,)', '{}', '{}'),
          (3, NULL, NULL, 'x', 'x', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
        INSERT INTO keyed SELECT m, s, span, p, 0 FROM
          unnest('{sad,"it''s ok","a,b","\\"","\\\\",""}'::"t %s{}"."Mood's"[]) m,
          unnest('{"",a,"\\\\N"}'::text[]) s,
          unnest(ARRAY['[1,2)', 'empty', '(,NaN)']::span[]) span,
          unnest(ARRAY['(1,)', '(,"\\"")']::pair[]) p;
        """
    )
    pipeline.catch_up()
    assert_equal(source, target, "made", "keyed")
    source.execute(
        "UPDATE made SET mood = 'a,b', pair = (7, '\\N')::pair, short = 'zz' WHERE id < 3"
    )
    source.execute("UPDATE keyed SET n = n + 1 WHERE shorter <> 'a'")
    source.execute("UPDATE keyed SET mood = 'żółć' WHERE mood = 'sad' AND n = 1")
    source.execute("DELETE FROM keyed WHERE span = 'empty'; DELETE FROM made WHERE id = 3")
    pipeline.catch_up()

    assert_equal(source, target, "made", "keyed")
    kinds = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'made'::regclass AND attnum > 0"
    differing = set(source.query(kinds)) - set(target.query(kinds))
    assert differing <= {("sets", '"word sets"')}, "only what cannot be made becomes text"


def test_generated_and_identity_columns_have_equal_values(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE always (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,"
        " doubled int GENERATED ALWAYS AS (a * 2) STORED, n int GENERATED BY DEFAULT AS IDENTITY)"
    )
    virtual = "VIRTUAL" if source.value("SHOW server_version_num") >= "180000" else "STORED"
    source.execute(
        f"CREATE TABLE laugh (h text GENERATED ALWAYS AS (repeat('%', a) || E'\\'{{}}') {virtual},"
        " a int PRIMARY KEY, b text)"
    )
    target.execute("CREATE TABLE ready (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    source.execute("CREATE TABLE ready (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    source.execute("ALTER TABLE ready ALTER v SET STORAGE EXTERNAL")
    pipeline = make_pipeline(source, target)

    source.execute("INSERT INTO always (a) SELECT generate_series(1, 10)")
    source.execute("INSERT INTO always (id, a, n) OVERRIDING SYSTEM VALUE VALUES (-5, NULL, 3)")
    source.execute("INSERT INTO laugh (a) SELECT generate_series(0, 5)")
    source.execute(
        "INSERT INTO ready (v) SELECT repeat(md5(g::text), 200) FROM generate_series(1, 5) g"
    )
    pipeline.catch_up()
    assert_equal(source, target, "always", "laugh", "ready")
    source.execute(
        "UPDATE always SET a = a + 1, n = 77 WHERE id < 5; DELETE FROM always WHERE id = 7"
    )
    source.execute("UPDATE laugh SET a = a + 100 WHERE a < 2; UPDATE laugh SET b = 'b'")
    source.execute(
        "UPDATE ready SET id = DEFAULT WHERE id IN (1, 2); UPDATE ready SET v = 'x' WHERE id = 3"
    )
    pipeline.catch_up()

    assert_equal(source, target, "always", "laugh", "ready")


@only_new
def test_types_of_extensions_arrive_and_become_text_where_the_target_lacks_them(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    for extension in ("hstore", "citext", "ltree", "vector"):
        source.execute(f"CREATE EXTENSION {extension}")
    target.execute("CREATE EXTENSION hstore; CREATE EXTENSION citext")
    source.execute(
        "CREATE TABLE t (c citext PRIMARY KEY, h hstore, hs hstore[], l ltree, v vector(3))"
    )
    pipeline = make_pipeline(source, target)

    source.execute(
        "INSERT INTO t VALUES ('Ab', 'a=>NULL, \"b \\\\\\\" c\"=>\"\\\\N\"', ARRAY['x=>1'::hstore], 'a.b_1', '[1,2.5,-0]'),"
        " ('cd', '', '{}', '', NULL)"
    )
    pipeline.catch_up()
    source.execute("UPDATE t SET c = 'AB' WHERE c = 'ab'; UPDATE t SET h = h || 'z=>1'")
    source.execute("DELETE FROM t WHERE c = 'CD'")
    pipeline.catch_up()

    assert_equal(source, target, "t")
    kinds = target.query("SELECT pg_typeof(c)::text, pg_typeof(h)::text, pg_typeof(l)::text FROM t")
    assert kinds == [("citext", "hstore", "text")]


@only_15
def test_settings_and_encodings_of_the_databases_do_not_change_values(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    odd = {
        "datestyle": "German, DMY",
        "intervalstyle": "iso_8601",
        "extra_float_digits": "-15",
        "bytea_output": "escape",
        "timezone": "'Asia/Kathmandu'",
        "search_path": "nowhere",
        "quote_all_identifiers": "on",
        "standard_conforming_strings": "off",
        "default_transaction_isolation": "serializable",
        "xmloption": "document",
        "array_nulls": "off",
    }
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, ts timestamptz, i interval, f float8, b bytea, x xml, a text[])"
    )
    for database in (source, target):
        for name, value in odd.items():
            database.execute(f'ALTER DATABASE "{database.name}" SET {name} TO {value}')
    pipeline = make_pipeline(source, target)

    source.execute(
        "SET xmloption = content; SET array_nulls = on;"
        "INSERT INTO public.t VALUES (1, '2000-02-01 10:00+00', '1 mon 2 days', 0.1::float8 + 0.2::float8,"
        " '\\\\x5c00ff27'::bytea, 'no document', '{NULL,\"NULL\"}')"
    )
    pipeline.catch_up()
    source.execute("UPDATE public.t SET f = f / 3, id = 2")
    pipeline.catch_up()

    assert_equal(source, target, "public.t")
    exact = "SELECT float8send(f) FROM public.t"
    assert target.query(exact) == source.query(exact)
    assert not pipeline.deliveries[0].stopped_tables


@only_new
def test_large_values_and_other_server_encodings_arrive(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    admin: Any = type(source)(source.server, "postgres")
    latin = type(source)(source.server, f"{source.name}_latin")
    admin.execute(
        f"CREATE DATABASE \"{latin.name}\" ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'"
    )
    try:
        latin.execute('CREATE TABLE "é" (id int PRIMARY KEY, "ü" text)')
        pipeline = make_pipeline(latin, target)
        latin.execute(
            "INSERT INTO \"é\" SELECT g, chr(160 + g) || 'ÿ\\' FROM generate_series(1, 90) g"
        )
        latin.execute("INSERT INTO \"é\" VALUES (0, repeat('é\\', 1000000))")
        latin.execute('UPDATE "é" SET "ü" = upper("ü") WHERE id BETWEEN 1 AND 40')
        pipeline.catch_up()
        pipeline.stop()

        assert_equal(latin, target, '"é"')
    finally:
        from fix_postgres import drop_database

        drop_database(latin)


@pytest.mark.long
@only_15  # the newest is built without ICU
def test_row_that_the_target_spells_differently_is_found_where_its_collation_says_so(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    composed, decomposed = "\u00e4bc", "a\u0308bc"
    target.execute(
        "CREATE COLLATION loose (provider = icu, locale = 'und', deterministic = false);"
        "CREATE DOMAIN word AS text COLLATE loose"
    )
    kinds = {"plain": "text", "short": "varchar(9)", "padded": "char(9)", "listed": "text[]"}
    for name, kind in kinds.items():
        source.execute(f"CREATE TABLE {name} (a {kind}, b text)")
        target.execute(f"CREATE TABLE {name} (a {kind} COLLATE loose, b text)")
    source.execute("CREATE TABLE tamed (a text, b text); CREATE TABLE alone (a text)")
    target.execute("CREATE TABLE tamed (a word, b text); CREATE TABLE alone (a text COLLATE loose)")
    source.execute("CREATE TABLE keyed (a text PRIMARY KEY, b text)")
    target.execute("CREATE TABLE keyed (a text COLLATE loose PRIMARY KEY, b text)")
    full = (*kinds, "tamed", "alone")
    for name in (*full, "keyed"):
        reported = (composed, decomposed) if name != "listed" else ([composed], [decomposed])
        values = "(%s)" if name == "alone" else "(%s, 'first')"
        source.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL" if name in full else "SELECT 1")
        source.execute(f"INSERT INTO {name} VALUES {values}", reported[0])
        target.execute(f"INSERT INTO {name} VALUES {values}", reported[1])
    pipeline = make_pipeline(source, target)

    # One row at the target for each of the source's, also where both spellings are there, or NULL.
    for name in (*full, "keyed"):
        changed = "a = 'other'" if name == "alone" else "b = 'second'"
        source.execute(f"UPDATE {name} SET {changed}")
    pipeline.catch_up()
    for name in full:
        assert target.value(f"SELECT count(*) FROM {name}") == 1, name
    assert_equal(source, target, *full)
    assert target.query("SELECT b FROM keyed") == [("second",)]
    source.execute(
        "INSERT INTO plain VALUES (%s, 'x'), (%s, 'x'), (%s, 'x'), (NULL, 'x'), (NULL, NULL), ('', 'x')",
        composed,
        composed,
        decomposed,
    )
    pipeline.catch_up()
    source.execute("DELETE FROM plain WHERE ctid IN (SELECT min(ctid) FROM plain WHERE b = 'x')")
    source.execute("DELETE FROM plain WHERE a = %s AND b = 'x'", decomposed)
    source.execute("DELETE FROM plain WHERE a IS NULL AND b = 'x'")
    pipeline.catch_up()

    assert_equal(source, target, "plain")
    odd = "SELECT sum(insert_exists + update_missing + delete_missing) FROM penstock.tables"
    assert target.value(odd) == 0
