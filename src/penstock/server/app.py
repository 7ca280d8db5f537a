"""The routes. Every answer is made from memory, but for those of the admin API.

Not `from __future__ import annotations`: FastAPI reads annotations when the routes are made.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field, TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from penstock.errors import PenstockError, PipelineFileError, RequestRefused
from penstock.server.access import as_json
from penstock.server.last_hour import LastHour
from penstock.server.problems import (
    HOW_TO_SEE,
    brief,
    meaning,
    problems,
    reasons_not_ready,
    without_details,
)
from penstock.server.scraped import METRICS_TYPE
from penstock.server.subscriptions import add_subscriptions
from penstock.server.telemetry import Telemetry
from penstock.server.view import ROW, View
from penstock.server.watched import Snapshot, Watched
from penstock.sinks.subscriptions import Subscriptions
from penstock.text import printable
from penstock.timing import timing

_log = logging.getLogger(__name__)

# Each is a connection that stays open; actions open connections to servers of the user's.
MOST_STREAMS = 16
# Who reads does not keep anybody from acting: a server that does not answer takes its time.
_ACTIONS_AT_ONCE = 2
_READS_AT_ONCE = 2
_MOST_NAMES = 1000
_MOST_PARKED = 1000

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

Found = TypeVar("Found")
# No name of Postgres's holds a NUL, and no query takes one.
Name = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\x00]+$")]


class TableNames(BaseModel):
    """Tables of one source, or of all that have them."""

    model_config = {"extra": "forbid"}
    names: Annotated[list[Name], Field(min_length=1, max_length=_MOST_NAMES)]
    source: Name | None = None


class StoppedTables(TableNames):
    """Tables that have stopped at a sink."""

    sink: Name


class ParkedChoice(BaseModel):
    """Which parked changes are meant; what is left out excludes nothing."""

    model_config = {"extra": "forbid"}
    sink: Name | None = None
    source: Name | None = None
    table: Name | None = None
    # An empty list is what a search that found nothing hands over: it must not mean everything.
    ids: Annotated[list[Name], Field(min_length=1, max_length=_MOST_NAMES)] = []


class Pages:
    """The last snapshot, in the forms that are asked for; each is made once."""

    def __init__(self, watched: Watched, telemetry: Telemetry, *, has_token: bool) -> None:
        self._watched = watched
        self._telemetry = telemetry
        self._has_token = has_token
        self._views: dict[bool, View] = {}
        self._texts: dict[bool, tuple[int, bytes]] = {}

    def view(self, snapshot: Snapshot, *, is_trusted: bool) -> View:
        """For the page."""
        found = self._views.get(is_trusted)
        if found is None or found.version != snapshot.version:
            rates = self._telemetry.counts.table_rates()
            found = View(
                snapshot,
                self._watched.halves,
                rates,
                is_trusted=is_trusted,
                has_token=self._has_token,
                log=self._watched.log,
            )
            self._views[is_trusted] = found
        return found

    def status_text(self, snapshot: Snapshot, *, is_trusted: bool) -> bytes:
        """The JSON of `penstock status`."""
        version, text = self._texts.get(is_trusted, (-1, b""))
        if version != snapshot.version:
            status = snapshot.status if is_trusted else without_details(snapshot.status)
            text = TypeAdapter(type(status)).dump_json(status)
            self._texts[is_trusted] = (snapshot.version, text)
        return text


def build_app(
    watched: Watched,
    telemetry: Telemetry,
    history: LastHour,
    version: str,
    is_closing: Callable[[], bool],
    *,
    has_token: bool,
) -> FastAPI:
    """The application, without the gate in front of it (`penstock.server.access`)."""
    app = FastAPI(
        title="penstock",
        version=version,
        description=f"Pipeline {watched.name}",
        docs_url=None,  # our own page: that of FastAPI comes from elsewhere
        redoc_url=None,
    )
    pages = Pages(watched, telemetry, has_token=has_token)
    add_errors(app)
    _add_page(app)
    _add_reading(app, watched, telemetry, pages, version)
    _add_events(app, watched, history, pages, is_closing)
    _add_admin(app, watched)
    if subscribed := watched.subscriptions():
        add_subscriptions(app, subscribed, watched.poll_again)
    return app


def build_subscriptions_app(name: str, sinks: Mapping[str, Subscriptions], version: str) -> FastAPI:
    """The routes of subscriptions alone, for a process that does not deliver."""
    app = FastAPI(
        title="penstock",
        version=version,
        description=f"Subscriptions of pipeline {name}",
        docs_url=None,
        redoc_url=None,
    )

    @app.get("/health", tags=["reading"])
    async def health() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok", "version": version}

    add_errors(app)
    add_subscriptions(app, sinks)
    return app


def _is_trusted(request: Request) -> bool:
    return bool(request.scope["state"]["is_trusted"])


def _snapshot(watched: Watched) -> Snapshot:
    found = watched.snapshot()
    if found is None:
        raise HTTPException(503, "the run is being started; ask again in a moment")
    return found


def add_errors(app: FastAPI) -> None:
    """Have errors answered as penstock says them."""

    @app.exception_handler(PenstockError)
    async def _known(request: Request, error: PenstockError) -> JSONResponse:
        if isinstance(error, PipelineFileError):
            return JSONResponse(as_json(error), 400)
        if not _is_trusted(request):
            code, what = meaning(str(error))
            known = {"code": code, "what": what, "where": "", "do": HOW_TO_SEE}
            return JSONResponse({"error": known}, 409)
        return JSONResponse(as_json(error), 409)

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        what = f"an unexpected {type(error).__name__}"
        found = PenstockError(what, "", "see what penstock logged, and report it")
        return JSONResponse(as_json(found), 500)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not repeated.
        said = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        refused = RequestRefused("; ".join(said)[:500], "", "see /openapi.json")
        return JSONResponse(as_json(refused), 422)

    @app.exception_handler(StarletteHTTPException)
    async def _http(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse(as_json(RequestRefused(str(error.detail))), error.status_code)


def _add_page(app: FastAPI) -> None:
    contents = {
        path: (files("penstock.server").joinpath("page", name).read_bytes(), kind)
        for path, (name, kind) in _PAGE.items()
    }

    async def serve(request: Request) -> Response:
        content, kind = contents[request.url.path]
        return Response(content, media_type=kind)

    for path in contents:
        app.add_api_route(path, serve, methods=["GET"], include_in_schema=False)


def _add_reading(
    app: FastAPI, watched: Watched, telemetry: Telemetry, pages: Pages, version: str
) -> None:
    @app.get("/health", tags=["reading"])
    async def health() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok", "version": version}

    @app.get("/ready", tags=["reading"])
    async def ready(request: Request) -> JSONResponse:
        """Whether data can move: 503 with the reasons where it cannot."""
        found = reasons_not_ready(watched.snapshot(), watched.halves)
        is_trusted, is_local = _is_trusted(request), request.scope["state"]["is_local"]
        failures = [
            {"component": each.component, "error": each.error}
            if is_trusted
            else {"component": each.component if is_local else each.component.partition(" ")[0]}
            for each in found
        ]
        content = {"status": "unready" if found else "ready", "failures": failures}
        return JSONResponse(content, 503 if found else 200)

    @app.get("/status", tags=["reading"])
    async def status(request: Request) -> Response:
        """As `penstock status --json` prints it, from memory."""
        text = pages.status_text(_snapshot(watched), is_trusted=_is_trusted(request))
        return Response(text, media_type="application/json")

    @app.get("/metrics", tags=["reading"])
    async def metrics() -> Response:
        """As Prometheus reads them."""
        return Response(telemetry.text(), media_type=METRICS_TYPE)

    @app.get("/api/tables", tags=["reading"])
    async def tables(request: Request) -> dict[str, Any]:
        """All tables by sink, each with its state."""
        view = pages.view(_snapshot(watched), is_trusted=_is_trusted(request))
        return {
            sink: {table: dict(zip(ROW, row, strict=True)) for table, row in rows.items()}
            for sink, rows in view.rows.items()
        }

    @app.get("/api/errors", tags=["reading"])
    async def errors(request: Request, past: bool = False) -> list[dict[str, Any]]:
        """What stands still, with what to do; or, `past`, the last errors that came up, gone or not, newest first."""
        if past:
            is_trusted = _is_trusted(request)
            return [
                {**asdict(each), "text": each.text if is_trusted else brief(each.text)}
                for each in telemetry.counts.past_errors()
            ]
        found = problems(_snapshot(watched), watched.halves, is_trusted=_is_trusted(request))
        return [each.as_dict() for each in found]


def _add_events(
    app: FastAPI,
    watched: Watched,
    history: LastHour,
    pages: Pages,
    is_closing: Callable[[], bool],
) -> None:
    streams = asyncio.Semaphore(MOST_STREAMS)

    @app.get("/api/history", tags=["reading"])
    async def last_hour(since: float = 0.0) -> dict[str, Any]:
        """Lag and throughput of the last hour, by sink."""
        return history.as_dict(since)

    @app.get("/api/events", tags=["reading"])
    async def events(request: Request) -> Response:
        """Server-sent events: the whole view with the last hour first, then what has changed."""
        if streams.locked():
            raise HTTPException(503, f"{MOST_STREAMS} pages are open already; close one")
        is_trusted = _is_trusted(request)

        async def stream() -> AsyncIterator[str]:
            async with streams:
                before: View | None = None
                sent_at = 0.0
                points_at = 0.0  # up to when points of the charts were sent
                while not is_closing() and not await request.is_disconnected():
                    watched.hurry()
                    snapshot = watched.snapshot()
                    if snapshot is not None and (
                        before is None or before.version != snapshot.version
                    ):
                        view = pages.view(snapshot, is_trusted=is_trusted)
                        sent = view.since(before)
                        if history.taken_at > points_at:
                            sent["history"] = history.as_dict(points_at)
                            points_at = history.taken_at
                        yield f"event: view\ndata: {json.dumps(sent)}\n\n"
                        before, sent_at = view, time.monotonic()
                    elif time.monotonic() - sent_at > timing().server_alive_seconds:
                        yield ": alive\n\n"
                        sent_at = time.monotonic()
                    await asyncio.sleep(timing().server_event_seconds)

        return StreamingResponse(stream(), media_type="text/event-stream")


def _add_admin(app: FastAPI, watched: Watched) -> None:
    acting, asking = asyncio.Semaphore(_ACTIONS_AT_ONCE), asyncio.Semaphore(_READS_AT_ONCE)

    async def act(request: Request, what: str, action: Callable[..., Any], *given: Any) -> Any:
        """Carry out an action, and log who asked for it."""
        peer = request.client.host if request.client is not None else "unknown"
        who = request.headers.get("x-penstock-user", "the token")[:100]
        _log.info("admin: %s, asked for by %s from %s", printable(what), printable(who), peer)
        async with acting:
            return await run_in_threadpool(action, *given)

    async def ask(question: Callable[..., Found], *given: Any) -> Found:
        """What a server of the user's has to say."""
        async with asking:
            return await run_in_threadpool(question, *given)

    def tables_action(action: str, summary: str) -> None:
        async def carry_out(request: Request, asked: TableNames) -> dict[str, Any]:
            what = f"tables {action} {', '.join(asked.names)}"
            done = await act(
                request, what, watched.change_tables, action, asked.names, asked.source
            )
            return {"done": done}

        app.post(f"/api/tables/{action}", tags=["admin"], summary=summary)(carry_out)

    tables_action("add", "Follow tables from now on; they are copied first")
    tables_action("remove", "Follow tables no more; their rows at the sinks stay")
    tables_action("resync", "Copy tables again")

    @app.post("/api/tables/retry", tags=["admin"])
    async def retry(request: Request, asked: StoppedTables) -> dict[str, Any]:
        """Try stopped tables again now."""
        what = f"tables retry {', '.join(asked.names)} at sink {asked.sink}"
        given = (asked.sink, asked.names, asked.source)
        return {"done": await act(request, what, watched.retry_tables, *given)}

    @app.post("/api/sinks/{sink}/pause", tags=["admin"])
    async def pause(request: Request, sink: Name) -> dict[str, Any]:
        """Hold delivery to a sink after the batch under way; also after a restart."""
        return {"done": [await act(request, f"pause sink {sink}", _pause, watched, sink, True)]}

    @app.post("/api/sinks/{sink}/resume", tags=["admin"])
    async def resume(request: Request, sink: Name) -> dict[str, Any]:
        """Go on with delivery to a sink."""
        return {"done": [await act(request, f"resume sink {sink}", _pause, watched, sink, False)]}

    @app.get("/api/parked", tags=["admin"])
    async def parked(
        sink: Name | None = None,
        source: Name | None = None,
        table: Name | None = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_PARKED)] = 200,
    ) -> dict[str, Any]:
        """Changes that a destination refused, with their keys and without their values."""
        count, found = await ask(watched.parked, sink, source, table, limit)
        return {"count": count, "parked": found}

    def parked_action(action: str, summary: str) -> None:
        async def carry_out(request: Request, asked: ParkedChoice) -> dict[str, Any]:
            given = (asked.sink, asked.source, asked.table, asked.ids)
            what = f"parked {action} {asked.model_dump(exclude_none=True, exclude_defaults=True)}"
            return {"count": await act(request, what, watched.change_parked, action, *given)}

        app.post(f"/api/parked/{action}", tags=["admin"], summary=summary)(carry_out)

    parked_action("retry", "Try parked changes again")
    parked_action("drop", "Drop parked changes for good")

    @app.get("/api/schema", tags=["admin"])
    async def versions(
        source: Name | None = None, schema: Name | None = None
    ) -> list[dict[str, Any]]:
        """The versions of the source's schemas."""
        return await ask(watched.versions, source, schema)

    @app.get("/api/schema/{schema:path}/{number}/changes", tags=["admin"])
    async def changes(schema: Name, number: int, source: Name | None = None) -> list[str]:
        """What a version changed, in words; nothing for the first."""
        return await ask(watched.changes_of_version, source, schema, number)

    @app.get("/api/schema/{schema:path}/{number}", tags=["admin"])
    async def one_version(schema: Name, number: int, source: Name | None = None) -> dict[str, Any]:
        """A schema as it was in a version."""
        return await ask(watched.version, source, schema, number)


def _pause(watched: Watched, sink: str, is_paused: bool) -> str:
    return watched.pause(sink, is_paused=is_paused)
