"""What `check` finds on a real server, and what no message may show."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from fix_postgres import Database, MakeServer, create_database
from fix_subscription import ALL, ensure, follower, publications, rules, slots
from penstock import errors
from penstock.dsn import Dsn
from penstock.source.preflight import preflight
from penstock.table import TableRule, TableRules

if TYPE_CHECKING:
    from penstock.findings import Finding


def check(source: Database, *include: str, **lists: tuple[str, ...]) -> list[Finding]:
    return preflight(source.dsn, rules(*include, **lists), "shop")


def by_severity(findings: list[Finding], severity: str) -> list[Finding]:
    return [finding for finding in findings if finding.severity == severity]


# Poolers.


class FakePooler:
    """Passes SQL on as PgBouncer does; what becomes of replication is set by `refuses`."""

    def __init__(self, server_port: int, *, refuses: bool) -> None:
        self._server_port = server_port
        self._refuses = refuses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            startup = self._read_startup(client)
            if b"replication\0" in startup:
                if self._refuses:
                    fields = b"SFATAL\0C08P01\0Munsupported startup parameter: replication\0\0"
                    client.sendall(b"E" + struct.pack(">I", len(fields) + 4) + fields)
                    return
                body = startup.replace(b"replication\0database\0", b"")[4:]
                startup = struct.pack(">I", len(body) + 4) + body
            with socket.create_connection(("127.0.0.1", self._server_port)) as upstream:
                upstream.sendall(startup)
                back = threading.Thread(target=_pump, args=(upstream, client), daemon=True)
                back.start()
                _pump(client, upstream)
                back.join()

    @staticmethod
    def _read_startup(client: socket.socket) -> bytes:
        while True:
            packet = client.recv(4096)
            if len(packet) != 8:  # not the questions for SSL or GSS encryption
                return packet
            client.sendall(b"N")


def _pump(reader: socket.socket, writer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := reader.recv(65536):
            writer.sendall(data)
        writer.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("refuses", [True, False])
def test_pooler_instead_of_the_server(source: Database, refuses: bool):
    pooler = FakePooler(source.server.port, refuses=refuses)
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    dsn = Dsn.parse(f"postgresql://postgres@127.0.0.1:{pooler.port}/{source.name}")

    findings = preflight(dsn, rules(*ALL), "shop")
    pooler.close()

    assert [type(finding.error) for finding in findings] == [errors.PoolerInTheWay]
    assert "pooler" in findings[0].what


# The server and the role.


def test_healthy_source_has_no_findings_and_is_not_changed(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    before = source.query("SELECT * FROM pg_stat_replication")

    assert check(source, "public.*") == []

    assert (slots(source), publications(source)) == ([], [])
    assert source.query("SELECT * FROM pg_stat_replication") == before


def test_finished_subscription_has_no_findings(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    ensure(source, rules(*ALL))

    assert check(source, *ALL) == []


def test_every_fault_is_found_at_once(make_server: MakeServer):
    settings = {"wal_level": "replica", "max_replication_slots": "1"}
    source = create_database(make_server(settings=settings), "source")
    source.execute("SELECT pg_create_physical_replication_slot('other')")
    source.execute("CREATE ROLE follower LOGIN; CREATE TABLE keyless (x int)")
    source.execute("CREATE TABLE theirs (id int PRIMARY KEY)")
    source.execute("CREATE TABLE odd (x int); ALTER TABLE odd OWNER TO follower")
    dsn = Dsn.parse(source.server.dsn(source.name, user="follower"))

    findings = preflight(dsn, rules("nothing", "keyless", "theirs", "*.odd"), "shop")

    found = {(type(each.error), each.place) for each in by_severity(findings, "error")}
    assert found == {
        (errors.WalLevelTooLow, str(dsn)),
        (errors.NoSlotLeft, str(dsn)),
        (errors.SourcePrivilegeMissing, str(dsn)),
        (errors.TableMissing, "public.nothing"),
        (errors.TableWithoutKey, "public.keyless"),
        (errors.SourcePrivilegeMissing, "public.theirs"),
    }
    rights = [each.do for each in findings if isinstance(each.error, errors.SourcePrivilegeMissing)]
    assert any('ALTER ROLE "follower" REPLICATION' in do for do in rights)
    assert any("GRANT CREATE ON DATABASE" in do for do in rights)
    warnings = by_severity(findings, "warning")
    assert ("PEN-211", "public.odd") in {(each.code, each.place) for each in warnings}
    assert all(each.do for each in findings)
    assert findings == [*by_severity(findings, "error"), *warnings]
    assert publications(source) == []


def test_statements_that_fix_rights_do_fix_them(source: Database):
    limited = follower(source, replication="NOREPLICATION")
    source.execute(f'REVOKE CREATE ON DATABASE "{source.name}" FROM follower')
    source.execute("CREATE TABLE theirs (id int PRIMARY KEY)")

    for finding in check(limited, "theirs"):
        for statement in finding.do.split(";"):
            if statement.strip().startswith(("ALTER", "GRANT")) and "its owner" not in statement:
                source.execute(statement)

    assert check(limited, "theirs") == []
    ensure(limited, rules("theirs"))


def test_member_of_rds_replication_may_replicate(source: Database):
    source.execute("CREATE ROLE rds_replication")
    limited = follower(source, replication="NOREPLICATION")
    source.execute("GRANT rds_replication TO follower")

    findings = check(limited, *ALL)

    # This server still refuses, being no RDS; it is the server that says so, not our own rule.
    refusals = [f for f in findings if isinstance(f.error, errors.SourcePrivilegeMissing)]
    assert len(refusals) == 1
    assert "WAL sender" in refusals[0].what or "walsender" in refusals[0].what


def test_table_that_the_role_may_not_read_is_a_warning(source: Database):
    limited = follower(source)
    source.execute('CREATE TABLE "a b" (id int PRIMARY KEY); ALTER TABLE "a b" OWNER TO follower')
    source.execute('REVOKE SELECT ON "a b" FROM follower')

    [finding] = check(limited, *ALL)

    assert (finding.severity, finding.code) == ("warning", "PEN-205")
    assert 'GRANT SELECT ON "public"."a b" TO "follower"' in finding.do


def test_no_sender_left(make_server: MakeServer):
    source = create_database(make_server(settings={"max_wal_senders": "1"}), "source")
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    made = ensure(source, rules(*ALL))
    conninfo = source.dsn.with_options(replication="database").encode()
    reader = psycopg.pq.PGconn.connect(conninfo)

    [finding] = check(source, *ALL)
    start = f"START_REPLICATION SLOT {made.slot} LOGICAL 0/0"
    reader.exec_(f"{start} (proto_version '1', publication_names 'penstock_shop')".encode())
    while_our_own_streams = check(source, *ALL)
    reader.finish()

    assert isinstance(finding.error, errors.NoSlotLeft)
    assert "max_wal_senders" in finding.do
    # Ours is the only one there is; a copy would want a second one.
    assert [(each.severity, each.code) for each in while_our_own_streams] == [
        ("warning", "PEN-206")
    ]


def test_settings_by_which_a_slot_is_lost_are_warned_of(make_server: MakeServer):
    settings = {"max_slot_wal_keep_size": "1GB", "idle_replication_slot_timeout": "1d"}
    source = create_database(make_server(settings=settings), "source")
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")

    findings = check(source, *ALL)

    assert {finding.severity for finding in findings} == {"warning"}
    assert "max_slot_wal_keep_size is 1024MB" in findings[0].what
    assert "idle_replication_slot_timeout is 86400s" in findings[1].what


def test_output_plugin_that_is_not_allowed(make_server: MakeServer):
    settings = {"output_plugin_libraries": "test_decoding"}
    source = create_database(make_server(settings=settings), "source")
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")

    [finding] = check(source, *ALL)

    assert "output_plugin_libraries" in finding.what
    assert "test_decoding, pgoutput" in finding.do


# Tables and what an earlier init left.


def test_keyless_tables_of_a_wildcard_are_warnings_each(source: Database):
    source.execute("CREATE TABLE a (x int); CREATE TABLE b (x int)")

    findings = check(source, "public.*")

    assert [(each.severity, each.code, each.place) for each in findings] == [
        ("warning", "PEN-211", "public.a"),
        ("warning", "PEN-211", "public.b"),
    ]
    for finding in findings:
        source.execute(finding.do.split(";")[0])
    assert check(source, "public.*") == []


@pytest.mark.parametrize(("rule", "severity"), [("public.*", "warning"), ("public.a", "error")])
def test_table_that_lost_its_key_while_penstock_was_stopped_is_said_to_refuse_updates(
    source: Database, rule: str, severity: str
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    ensure(source, rules("public.*"))
    source.execute("ALTER TABLE a DROP CONSTRAINT a_pkey")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        source.execute("UPDATE a SET id = 2")

    [finding] = check(source, rule)

    assert (finding.severity, finding.code, finding.place) == (severity, "PEN-211", "public.a")
    assert "they fail at this moment" in finding.what
    source.execute(finding.do.split(": ", 1)[1].split(";")[0])
    source.execute("UPDATE a SET id = 2")


def test_table_that_somebody_has_locked_is_a_warning(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    with source.connect(autocommit=False) as other:
        other.execute("LOCK TABLE b")

        [finding] = check(source, "public.*")

    assert (finding.severity, finding.code) == ("warning", "PEN-201")
    assert "public.b is locked against readers by session" in finding.what


def test_nothing_to_follow_is_a_warning(source: Database):
    [finding] = check(source, "later.*")

    assert (finding.severity, finding.code) == ("warning", "PEN-212")


def test_excluded_partition_of_an_included_root_is_warned_of(source: Database):
    source.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (5)"
    )

    [finding] = check(source, "public.*", exclude=("r1",))

    assert (finding.severity, finding.place) == ("warning", "public.r1")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("SELECT pg_drop_replication_slot('{slot}')", errors.SlotMissing),
        ("DROP PUBLICATION penstock_shop", errors.PublicationChanged),
        ("DROP PUBLICATION penstock_shop, penstock_shop_inserts", errors.PublicationChanged),
        ("COMMENT ON PUBLICATION penstock_shop IS 'mine'", errors.PublicationChanged),
    ],
)
def test_what_became_of_an_earlier_init_is_found(
    source: Database, change: str, found: type[errors.PenstockError]
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    made = ensure(source, rules(*ALL))
    source.execute(change.format(slot=made.slot))

    assert [type(finding.error) for finding in check(source, *ALL)] == [found]


def test_name_that_no_slot_can_carry_is_a_finding(source: Database):
    findings = preflight(source.dsn, TableRules((TableRule(None, None),)), "No Name")

    assert [type(finding.error) for finding in findings] == [errors.BadValue]
