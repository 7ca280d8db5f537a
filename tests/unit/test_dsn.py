"""How to reach a Postgres, without ever showing the password."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from penstock import vault
from penstock.dsn import Dsn
from penstock.errors import BadUrl, VaultUnreadable
from penstock.vault import Vault

CANARY = "hunter2c4n4ry"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (f"postgresql://ana:{CANARY}@db1:5433/shop", "db1:5433/shop"),
        (f"postgres://ana:{CANARY}@db1/shop", "db1:5432/shop"),
        (f"host=db1 user=ana password={CANARY} dbname=shop", "db1:5432/shop"),
        (f"host=db1 password='a://{CANARY}' dbname=shop", "db1:5432/shop"),
        (f"postgresql://db1/shop?user=ana&password={CANARY}", "db1:5432/shop"),
        (f"  postgresql://ana:{CANARY}@db1/shop\n", "db1:5432/shop"),
        (f"postgresql://ana:{CANARY}%40%2F%3A@db1/shop", "db1:5432/shop"),
        (f"postgresql://ana:{CANARY}@db1:1,db2:2/shop", "db1,db2:1,2/shop"),
        (f"postgresql://ana:{CANARY}@[::1]/shop", "::1:5432/shop"),
        (f"postgresql://ana:{CANARY}@/shop?host=/run/postgresql", "/run/postgresql:5432/shop"),
        ("postgresql:///shop", "localhost:5432/shop"),
        ("postgresql://db1/odd%40name", "db1:5432/odd@name"),
    ],
)
def test_dsn_prints_host_port_and_database_only(text, printed):
    dsn = Dsn.parse(text)

    assert str(dsn) == printed
    assert repr(dsn) == f"Dsn({printed})"


def test_dsn_keeps_the_password_for_the_connection():
    dsn = Dsn.parse(f"postgresql://ana:{CANARY}%40@db1/shop")

    assert conninfo_to_dict(dsn.conninfo)["password"] == CANARY + "@"
    assert (dsn.user, dsn.database) == ("ana", "shop")
    assert Dsn.parse(dsn.conninfo) == dsn
    assert copy.deepcopy(dsn) == dsn


def test_pickled_dsn_is_the_name_of_an_entry_in_a_file_of_this_user(tmp_path, monkeypatch):
    dsn = Dsn.parse(f"postgresql://ana:{CANARY}@db1/shop")
    kept = Vault(tmp_path)
    monkeypatch.setattr(vault, "_in_use", kept)

    pickled = pickle.dumps([dsn, Dsn.parse("postgresql://ana@db2/shop"), dsn])

    assert CANARY.encode() not in pickled
    assert b"ana" not in pickled
    assert kept.path.stat().st_mode & 0o777 == 0o600
    assert pickle.loads(pickled) == [dsn, Dsn.parse("postgresql://ana@db2/shop"), dsn]


def test_dsn_is_not_pickled_where_nobody_keeps_its_password(monkeypatch):
    monkeypatch.setattr(vault, "_in_use", None)  # another test may have started Spark

    with pytest.raises(TypeError, match="while Spark runs"):
        pickle.dumps(Dsn.parse("postgresql://ana@db2/shop"))


@pytest.mark.parametrize("damage", ["gone", "garbage", "empty"])
def test_task_that_cannot_read_its_connection_says_so(tmp_path, monkeypatch, damage):
    kept = Vault(tmp_path)
    monkeypatch.setattr(vault, "_in_use", kept)
    pickled = pickle.dumps(Dsn.parse(f"postgresql://ana:{CANARY}@db2/{damage}"))
    if damage == "gone":
        kept.path.unlink()
    else:
        kept.path.write_text("{}" if damage == "empty" else f"[{CANARY}")

    with pytest.raises(VaultUnreadable) as caught:
        pickle.loads(pickled)

    assert str(kept.path) in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "printed", "database"),
    [
        ("service=shop", "service shop", "shop"),
        ("postgresql://?service=shop", "service shop", "shop"),
        (f"service=shop password={CANARY}", "service shop", "shop"),
        ("service=shop dbname=other", "service shop", "other"),
        ("postgresql://db1/other?service=shop", "db1:5432/other", "other"),
    ],
)
def test_service_alone_says_how_to_connect(text, printed, database):
    dsn = Dsn.parse(text)

    assert (str(dsn), dsn.database) == (printed, database)
    assert conninfo_to_dict(dsn.for_session("penstock"))["service"] == "shop"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"mysql://ana:{CANARY}@db1/shop", "starts with 'mysql', wanted postgresql://"),
        (f"postgresq://ana:{CANARY}@db1/shop", "starts with 'postgresq'"),
        (f"postgres//ana:{CANARY}@db1/shop", "neither a URL nor a list"),
        (CANARY, "neither a URL nor a list"),
        ("", "names no database"),
        (f"postgresql://ana:{CANARY}@db1", "names no database"),
        (f"host=db1 password={CANARY}", "names no database"),
        (f"host=db1 password={CANARY} dbnam=shop", "invalid connection option"),
        (f"host=db1 {CANARY}=1 dbname=shop", "invalid connection option"),
        (f"dbname=shop password='{CANARY}", "unterminated quoted string"),
        (f"postgresql://ana:{CANARY}%zz@db1/shop", "percent-encoded"),
        (f"postgresql://db1/shop?{CANARY}=1", "query parameter"),
        (f"postgresql://ana:{CANARY}@[::1/shop", "[ of an address"),
        (f"postgresql://ana:{CANARY}@db1/shop x", "spaces"),
        (f"postgresql://ana:x@{CANARY}@db1/shop", "holds an @"),
        (f"postgresql://ana:1/{CANARY}@db1/shop", "holds an @"),
        (f"postgresql://ana:{CANARY}/x@db1/shop", "the port is not a number"),
        (f"dbname='postgresql://ana:{CANARY}@db1/shop'", "holds an @ or a URL"),
        ("postgresql://db1:54x2/shop", "the port is not a number"),
        ("postgresql://db1:99999/shop", "the port is not a number"),
        ("postgresql://db1:0/shop", "the port is not a number"),
    ],
)
def test_bad_connection_string_is_reported_without_showing_it(text, what):
    with pytest.raises(BadUrl) as caught:
        Dsn.parse(text)

    assert what in str(caught.value)
    assert CANARY not in str(caught.value)
    assert caught.value.do
    assert caught.value.__cause__ is None


@given(
    st.sampled_from(
        ["postgresql://a:", "host=h dbname=d password=", "postgresql://a@h/d?password="]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["@h/d", " dbname=d", "", "&sslmode=disable"]),
)
def test_password_never_appears_whatever_surrounds_it(before, odd, after):
    text = f"{before}{CANARY}{odd}{after}"

    try:
        shown = repr(Dsn.parse(text))
    except BadUrl as error:
        shown = str(error)

    assert CANARY not in shown


def test_options_are_added_and_those_of_the_user_win():
    dsn = Dsn.parse("postgresql://db1/shop?keepalives_idle=99&options=-c%20work_mem%3D1MB")

    merged = conninfo_to_dict(dsn.for_session("penstock capture", replication="database"))

    assert merged["keepalives_idle"] == "99"
    assert merged["connect_timeout"] == "10"
    assert merged["application_name"] == "penstock capture"
    assert merged["replication"] == "database"
    assert merged["client_encoding"] == "UTF8"
    assert str(merged["options"]).startswith("-c work_mem=1MB -c search_path=pg_catalog,pg_temp ")
