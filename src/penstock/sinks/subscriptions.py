"""Subscriptions of a sink that receivers subscribe to, as commands and the HTTP server see them. Knows no kind of sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class NoSubscription(LookupError):
    """There is none of that id."""


class Subscriptions(Protocol):
    """Those of one sink. Any method may raise PenstockError; BadValue where what was asked for cannot be.

    A subscription is a mapping as the API answers it: without its secrets.
    """

    def all(self) -> list[dict[str, Any]]:
        """All of them."""
        ...

    def get(self, id_: str) -> dict[str, Any]:
        """One. Raises NoSubscription."""
        ...

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """A new one, and from which position on it counts; with its secret, this once."""
        ...

    def change(self, id_: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Another url, tables and so on; a new secret signs beside the old one for a day. Raises NoSubscription."""
        ...

    def resume(self, id_: str) -> dict[str, Any]:
        """Deliver again. Raises NoSubscription."""
        ...

    def remove(self, id_: str) -> None:
        """Forget one. Raises NoSubscription."""
        ...

    def subscribe(self, url: str, schema: str, table: str, actions: list[str]) -> None:
        """As pgstream's receivers do it; the same again replaces the operations."""
        ...

    def unsubscribe(self, url: str, schema: str, table: str) -> None:
        """As pgstream's receivers do it; what is not there is no fault."""
        ...

    def test(self, url: str) -> str:
        """Send a request without a document; what came of it.

        Raises:
            SinkError: it was not taken.
        """
        ...
