"""What others could read or change on its way: connections without TLS, a cluster without authentication, a weak token."""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.dsn import Dsn, connect
from penstock.errors import Exposed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.config import PipelineFile
    from penstock.spark.options import SparkOptions

_TLS_OR_NOTHING = ("require", "verify-ca", "verify-full")


def exposures(pipeline: PipelineFile) -> list[Exposed]:
    """Every way that is open to others."""
    # Several parts may have one server in common.
    dsns = dict.fromkeys(_dsns(pipeline))
    found = [_in_clear(dsn) for dsn in dsns if _goes_in_clear(dsn)]
    weakness = pipeline.server.weakness()
    of_server = [] if weakness is None else [weakness]
    return [*found, *_of_spark(pipeline.spark), *of_server]


def _dsns(pipeline: PipelineFile) -> Iterator[Dsn]:
    for source in pipeline.sources.values():
        yield source.url
        if source.snapshot.url is not None:
            yield source.snapshot.url
    for name, options in pipeline.sinks.items():
        yield from pipeline.kind_of(name).connections(options)


def _in_clear(dsn: Dsn) -> Exposed:
    return Exposed(
        "the connection to another host is without TLS: rows can be read and changed on their way",
        str(dsn),
        "add sslmode=verify-full to the url, with sslrootcert, or sslmode=require at least",
    )


def _goes_in_clear(dsn: Dsn) -> bool:
    """As it is when connected; else as it may become, by what the string says."""
    try:
        with connect(dsn, "penstock check") as connection:
            here = is_here(connection.info.host) or is_here(connection.info.hostaddr)
            return not here and not connection.pgconn.ssl_in_use
    except psycopg.Error:
        return may_go_in_clear(dsn)


def may_go_in_clear(dsn: Dsn) -> bool:
    """Whether a connection may be without TLS, and leaves this machine; not known of a service."""
    parts = conninfo_to_dict(dsn.conninfo)
    mode = parts.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    hosts = parts.get("hostaddr") or parts.get("host")
    if hosts is None and not parts.get("service"):
        hosts = os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST")
    is_away = any(not is_here(host) for host in str(hosts or "").split(","))
    return is_away and mode not in _TLS_OR_NOTHING


def is_here(host: str) -> bool:
    """Whether what goes to a host stays on this machine: a unix socket, or its loopback."""
    if not host or host.startswith(("/", "@")):
        return True
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _of_spark(options: SparkOptions) -> Iterator[Exposed]:
    place = f"spark.master {options.master}"
    # On this machine penstock asks for authentication itself.
    default = "true" if options.is_local else "false"
    if options.conf.get("spark.authenticate", default) != "true":
        yield Exposed(
            "Spark's ports take orders from anybody who reaches them",
            place,
            "take spark.authenticate out of spark.conf"
            if options.is_local
            else "set spark.authenticate: true in spark.conf, and a secret where the cluster makes none;"
            " see docs/howto/run-on-a-cluster.md",
        )
    ways = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
    if not options.is_local and all(options.conf.get(way) != "true" for way in ways):
        yield Exposed(
            "what Spark's processes send one another is not encrypted",
            place,
            "set spark.network.crypto.enabled: true in spark.conf;"
            " see docs/howto/run-on-a-cluster.md",
        )
