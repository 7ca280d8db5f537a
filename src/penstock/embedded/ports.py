"""A TCP port for a server of ours."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port nobody listens on, outside the range the kernel gives to outgoing connections.

    From inside that range a client that keeps trying to reach a stopped server is sooner or later
    given the server's own port, connects to itself, and blocks the server's return.
    """
    try:
        first_given = int(_PORT_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:
        first_given = 32768
    choices = range(max(1024, first_given - 12000), first_given)
    for port in random.sample(choices, k=min(100, len(choices))):
        with socket.socket() as probe:
            # As Postgres does it, so that connections still dying on the port do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
