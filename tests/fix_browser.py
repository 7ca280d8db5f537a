"""A real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from fix_machine import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

    OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for the whole run."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("google-chrome") or program("chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-background-networking", "--disable-component-update"],
        )
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open pages; what one says on its console, or asks of another host, fails the test."""
    faults: list[str] = []
    contexts = []

    def visit(url: str, *, width: int = 1280, scheme: str = "light", **more: Any) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **more
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith(("http://127.0.0.1:", "data:"))
                else faults.append(asked.url)
            ),
        )
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert faults == []
