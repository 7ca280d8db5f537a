"""The page of the demo's pipeline: on a free port of loopback, with a token that nobody else knows."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import webbrowser
from typing import TYPE_CHECKING

from penstock.listen import Address, ServerOptions, Token

if TYPE_CHECKING:
    from penstock.demo.view import View


def free_address() -> ServerOptions:
    """An address that is free right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return ServerOptions(Address("127.0.0.1", port), Token(secrets.token_urlsafe(24)))


def open_page(view: View, options: ServerOptions) -> None:
    """Show the address, and the page where there is a browser.

    The token stands behind a #, which a browser keeps to itself.
    """
    url = f"http://{options.listen}/#token={options.token}"
    view.done(f"its page: {url}")
    if _has_browser():
        webbrowser.open(url)


def _has_browser() -> bool:
    """Whether one can be opened beside the terminal: some run in it, and would take it over."""
    if os.environ.get("BROWSER") or sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
