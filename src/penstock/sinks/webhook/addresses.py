"""Which addresses a request may go to. Who subscribes chooses a URL, and must not reach what only this machine can.

The rule is asked for the address that a socket is made for, so that neither a name that resolves differently the next
time nor an address in another spelling gets around it.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Addresses of IPv6 that a router turns into the one of IPv4 at their end.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# The same within one network: where the address of IPv4 stands in them only that network knows.
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")

# What `is_global` lets pass in some or all versions of Python, and no receiver has: metadata of a cloud, protocol
# assignments, relays of 6to4, documentation, segment routing.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(each)
    for each in (
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "2001::/23",
        "3fff::/20",
        "5f00::/16",
    )
)


class AddressRefused(OSError):
    """A connection that is not made: the address is none that anybody on the internet could reach."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is private, loopback, link-local or reserved")
        self.address = address


@dataclass(frozen=True)
class AddressRule:
    """Public addresses, and those of networks that the pipeline file allows."""

    allowed: tuple[Network, ...] = ()

    def permits(self, text: str) -> bool:
        """Whether a connection may be made to an address."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        meant = [address, *_inside(address)]
        if any(self._allows(each) for each in meant):
            return True
        if not all(_is_public(each) for each in meant):
            return False
        end = _isatap_end(address)
        return end is None or self._allows(end) or _is_public(end)

    def _allows(self, address: Address) -> bool:
        return any(address in network for network in self.allowed)

    def make_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for one address of `getaddrinfo`'s, as it is about to be connected.

        Raises:
            AddressRefused: the rule does not permit it.
        """
        family, kind, protocol, _, where = info
        if not self.permits(where[0]):
            raise AddressRefused(where[0])
        return socket.socket(family, kind, protocol)

    def refused_of(self, host: str, port: int) -> str | None:
        """An address of a host none of whose addresses is permitted; None where one is. Asks the name server.

        Raises:
            OSError: the host has no address.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in found]
        if not addresses or any(map(self.permits, addresses)):
            return None
        return addresses[0]


def _inside(address: Address) -> list[Address]:
    """The address of IPv4 that one of IPv6 stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = address.ipv4_mapped or address.sixtofour
    if found is None and address.teredo is not None:
        found = address.teredo[1]
    if found is None and address in _NAT64:
        found = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return [found] if found is not None else []


def _isatap_end(address: Address) -> ipaddress.IPv4Address | None:
    """The end of a tunnel of ISATAP, which has any prefix, and 0000:5efe or 0200:5efe before an address of IPv4."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if (int(address) >> 32) & 0xFDFFFFFF != 0x5EFE:
        return None
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # what it stands for is asked instead
        if address.is_site_local or address in _LOCAL_NAT64:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
