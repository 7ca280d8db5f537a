"""What triggers say in lines of text reads as what it says, and so does what older triggers have said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import SchemaUnreadable
from penstock.schema.lines import qualified, rows_of
from penstock.schema.wire import read_reported

_TYPE_LINES = '(31489,e,public.mini,"(31491,2,b)(31490,1,""a, """"c"""""")",,0,)'
_LINES = (
    "(t,om,public,r,d,31492,31494,public.om)"
    '(c,1,id,integer,23,-1,t,"","",)(c,2,m,public.mini,31489,-1,f,"","",)'
    '(c,3,"a,b","numeric(4,2)",1700,262150,f,"","",)(c,4,up,integer,23,-1,f,"","",)'
    '(c,5,d,text,25,-1,f,"","",x)'
    "(d,1,\"nextval('public.om_id_seq'::regclass)\")(d,5,\"'x\\\\y'::text\")"
    "(w,3,it)"
    '(o,31496,om_check,c,"CHECK ((""a,b"" > (0)::numeric))",{3},0,f,f,t,0,0," "," "," ")'
    '(o,31499,om_pkey,p,"PRIMARY KEY (id)",{1},31498,f,f,t,0,0," "," "," ")'
    '(o,31500,om_fk,f,"FOREIGN KEY (up) REFERENCES ""O x"".om(""a,b"", PERIOD at) ON DELETE SET NULL (up)'
    ' NOT VALID",{4},31498,f,f,f,0,31492,a,n,s)'
    '(o,31501,om_part,f,"FOREIGN KEY (up) REFERENCES public.om1(id)",{4},31498,f,f,t,31500,31493,a,a,s)'
    "(i,31498,t,,1,1,t,t,f,f)"
    '(i,31506,t,"CREATE UNIQUE INDEX "" USING "" ON public.om USING btree (lower((""a,b"")::text))",0,1,t,t,t,t)'
    "(e,3,31506,a,,,,,,,,)(e,1,31491,a,public.om_id_seq,integer,1,1,1,2147483647,1,f)"
)


def message(**fields: Any) -> str:
    return json.dumps({"format": 1, "tag": "ALTER TABLE", "xid": 7, **fields})


def test_table_in_lines_reads_by_names():
    table = {"id": 31492, "lines": _LINES, "type_lines": _TYPE_LINES}

    reported = read_reported(message(tables=[table]), "")

    (shape,) = reported.change.tables
    assert (str(shape.table), shape.filenode, shape.identity_index_id) == (
        "public.om",
        31492,
        31506,
    )
    assert [column.name for column in shape.columns] == ["id", "m", "a,b", "up", "d"]
    assert [column.type_kind for column in shape.columns] == ["b", "e", "b", "b", "b"]
    assert [column.default for column in shape.columns][-1] == r"'x\y'::text"
    assert shape.columns[0].sequence is not None
    assert shape.columns[0].sequence.name == "om_id_seq"
    assert (shape.columns[2].comment, shape.columns[4].missing) == ("it", "x")
    assert [(each.kind, each.definition) for each in shape.constraints] == [
        ("c", 'CHECK (("a,b" > (0)::numeric))'),
        ("p", "PRIMARY KEY (id)"),
    ]
    # What stands for one partition of what it leads to is not a key of its own.
    (key,) = shape.foreign_keys
    assert (key.referenced_schema, key.referenced_name) == ("O x", "om")
    assert key.referenced_columns == ("a,b", "at")
    assert (key.on_delete_columns, key.has_period, key.is_valid) == ((4,), True, False)
    (index,) = shape.indexes
    assert (index.name, index.definition) == (" USING ", 'btree (lower(("a,b")::text))')
    assert index.used == (3,)
    assert [(label.id, label.name) for label in shape.types[0].labels] == [
        (31490, 'a, "c"'),
        (31491, "b"),
    ]
    assert reported.row_types[0].id == 31494


def test_older_triggers_rows_read_as_the_same_table():
    older = {
        "id": 31492, "schema_name": "public", "name": "om", "kind": "r", "replica_identity": "d",
        "filenode": 31492, "row_type_id": 31494, "row_type": "public.om",
        "columns": [["1", "id", "integer", "23", "b", "-1", "true"],
                    ["2", "m", "public.mini", "31489", "e", "-1", "false"]],
        "details": [["1", "nextval('public.om_id_seq'::regclass)", None, "", ""]],
        "sequences": [["1", "a", "public.om_id_seq", "31491", "public", "om_id_seq", "integer",
                       "1", "1", "1", "2147483647", "1", "false"]],
        "comments": [["2", "it"]],
        "constraints": [["31499", "om_pkey", "p", "PRIMARY KEY (id)", "{1}", "31498", "false", "false"]],
        "foreign_keys": [["31500", "om_fk", "{2}", "31492", "public", "om", '["id"]', "a", "a", None,
                          "s", "false", "false", "true", "true", "false"]],
        "indexes": [["31498", "om_pkey", "true", None, "1", "1", "true", "true", "false", "false"],
                    ["31506", "om_idx", "true", "btree (lower((m)::text))", "0", "1", "true", "true",
                     "false", "true"]],
        "types": [["31489", "public", "mini", "public.mini", "e", '[["31490","a"]]', None, "0", None]],
        "depends": [[31506, 2]],
    }  # fmt: skip
    lines = (
        "(t,om,public,r,d,31492,31494,public.om)"
        '(c,1,id,integer,23,-1,t,"","",)(c,2,m,public.mini,31489,-1,f,"","",)'
        "(d,1,\"nextval('public.om_id_seq'::regclass)\")(w,2,it)"
        '(o,31499,om_pkey,p,"PRIMARY KEY (id)",{1},31498,f,f,t,0,0," "," "," ")'
        '(o,31500,om_fk,f,"FOREIGN KEY (m) REFERENCES public.om(id)",{2},31498,f,f,t,0,31492,a,a,s)'
        "(i,31498,t,,1,1,t,t,f,f)"
        '(i,31506,t,"CREATE UNIQUE INDEX om_idx ON public.om USING btree (lower((m)::text))",0,1,t,t,f,t)'
        "(e,2,31506,a,,,,,,,,)(e,1,31491,a,public.om_id_seq,integer,1,1,1,2147483647,1,f)"
    )
    now = {"id": 31492, "lines": lines}
    now["type_lines"] = '(31489,e,public.mini,"(31490,1,a)",,0,)'

    assert read_reported(message(tables=[older]), "") == read_reported(message(tables=[now]), "")


def test_new_types_are_those_that_can_be_made_anew():
    lines = "(1,e,public.mood,,,0,)(2,b,public.citext,,,0,citext)(3,d,public.d,,integer,23,)(4,b,public.b,,,0,)"

    change = read_reported(message(type_lines=lines, tables=[]), "").change

    assert [(each.name, each.kind, each.base) for each in change.types] == [
        ("mood", "enum", ""),
        ("d", "domain", "integer"),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        "(c,1)",
        "(x,1)",
        "(t,om,public,r,d,1,2,public.om)(o,1,k,f,nonsense,{1},1,f,f,t,0,1,a,a,s)",
        "(t,om,public,r,d,1,2,public.om)(i,1,t,nonsense,1,1,t,t,f,f)",
        "",
    ],
)
def test_lines_that_are_none_are_refused(lines: str):
    with pytest.raises(SchemaUnreadable):
        read_reported(message(tables=[{"id": 1, "lines": lines}]), "")


def test_rows_with_every_character_that_counts():
    text = '(a,"",,"x ""y"" \\\\ (z), ,")("two\nlines")'

    assert rows_of(text) == [["a", "", None, 'x "y" \\ (z), ,'], ["two\nlines"]]


def test_names_that_need_quotes():
    assert qualified('"a.b"."c""d"') == ("a.b", 'c"d')
    assert qualified("public.t") == ("public", "t")
    assert qualified("pg_class") == ("pg_catalog", "pg_class")
