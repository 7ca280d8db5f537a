"""The routes of subscriptions: penstock's own, and those that pgstream's receivers know.

Not `from __future__ import annotations`: FastAPI reads annotations when the routes are made.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from penstock.errors import BadValue, PipelineFileError, SinkError
from penstock.sinks.subscriptions import NoSubscription, Subscriptions
from penstock.text import printable

_log = logging.getLogger(__name__)

# Each waits for a name server and for the disk.
_AT_ONCE = 8
_LONGEST_URL = 2048
_MOST_RULES = 1000

Name = Annotated[str, Field(min_length=1, max_length=300)]
SinkName = Annotated[str | None, Field(max_length=300)]


class Changed(BaseModel):
    """What a subscription may be changed in."""

    model_config = {"extra": "forbid"}
    url: Annotated[str | None, Field(max_length=_LONGEST_URL)] = None
    tables: Annotated[list[Name] | None, Field(max_length=_MOST_RULES)] = None
    operations: Annotated[list[Name] | None, Field(max_length=20)] = None
    format: Name | None = None
    batch_size: Annotated[int | None, Field(ge=1, le=1000)] = None
    secret: Annotated[str | None, Field(max_length=200)] = None
    filter: Annotated[str | None, Field(max_length=4000)] = None


class Wanted(Changed):
    """A new subscription."""

    url: Annotated[str, Field(max_length=_LONGEST_URL)]
    sink: SinkName = None


class PgstreamWanted(BaseModel):
    """As pgstream's receivers send it; what is empty, or null, means all."""

    model_config = {"extra": "ignore"}
    url: Annotated[str | None, Field(max_length=_LONGEST_URL)] = None
    event_types: Annotated[list[str] | None, Field(max_length=20)] = None
    schema_name: Annotated[str | None, Field(alias="schema", max_length=300)] = None
    table: Annotated[str | None, Field(max_length=300)] = None

    @property
    def place(self) -> tuple[str, str, str]:
        """What a subscription of pgstream is known by."""
        return self.url or "", self.schema_name or "", self.table or ""


class PgstreamRoute(APIRoute):
    """Answers 400 to a body that cannot be, as pgstream does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See APIRoute."""
        handle = super().get_route_handler()

        async def handle_or_refuse(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                # What was sent is not repeated.
                said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
                return JSONResponse({"error": "; ".join(said)[:500]}, 400)

        return handle_or_refuse


class Book:
    """The subscriptions of all sinks of a pipeline that have some, by sink."""

    def __init__(self, sinks: Mapping[str, Subscriptions]) -> None:
        self._sinks = sinks

    def of(self, sink: str | None) -> Subscriptions:
        """Those of a sink; of the only one where none is named.

        Raises:
            BadValue: there is none, or which one is not said.
        """
        if sink is not None and sink in self._sinks:
            return self._sinks[sink]
        if sink is None and len(self._sinks) == 1:
            return next(iter(self._sinks.values()))
        names = ", ".join(self._sinks) or "none"
        raise BadValue(
            f"sink {sink!r} has no subscriptions, wanted one of {names}"
            if sink is not None
            else f"which sink is not said, wanted one of {names}",
            "sink",
            "name a sink of kind webhook of the pipeline file",
        )

    def where(self, id_: str, sink: str | None = None) -> Subscriptions:
        """The sink that a subscription is of; of a sink that is named, for those of the file may be at several.

        Raises:
            NoSubscription: of none.
            BadValue: the sink has none at all.
        """
        for each in self._sinks.values() if sink is None else [self.of(sink)]:
            if any(one["id"] == id_ for one in each.all()):
                return each
        raise NoSubscription(id_)

    def all(self, sink: str | None) -> list[dict[str, Any]]:
        """All, each with its sink."""
        chosen = {sink: self.of(sink)} if sink is not None else self._sinks
        return [{"sink": name, **one} for name, each in chosen.items() for one in each.all()]


def add_subscriptions(
    app: FastAPI,
    sinks: Mapping[str, Subscriptions],
    on_changed: Callable[[], None] = lambda: None,
) -> None:
    """Add the routes. The gate in front of the application asks for the token, but for reading on loopback.

    `on_changed` is called when somebody has changed something of what the status shows.
    """
    book = Book(sinks)
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def act(request: Request, what: str, action: Callable[..., Any], *given: Any) -> Any:
        peer = request.client.host if request.client is not None else "unknown"
        _log.info("subscriptions: %s, asked for from %s", printable(what), peer)
        done = await ask(action, *given)
        on_changed()
        return done

    async def ask(action: Callable[..., Any], *given: Any) -> Any:
        async with at_once:
            try:
                return await run_in_threadpool(action, *given)
            except NoSubscription:
                raise HTTPException(404, "there is no such subscription") from None
            except SinkError as error:
                raise HTTPException(503, error.what) from None

    def shown(request: Request, found: Mapping[str, Any]) -> dict[str, Any]:
        return dict(found) if request.scope["state"]["is_trusted"] else _without_details(found)

    @app.get("/subscriptions", tags=["subscriptions"])
    async def all_of_them(request: Request, sink: SinkName = None) -> dict[str, Any]:
        """All subscriptions, without their secrets; without the token, without filters, texts of errors and paths of URLs."""
        return {"subscriptions": [shown(request, each) for each in await ask(book.all, sink)]}

    @app.get("/subscriptions/{id_}", tags=["subscriptions"])
    async def one(request: Request, id_: Name, sink: SinkName = None) -> dict[str, Any]:
        """One subscription."""
        return shown(request, await ask(lambda: book.where(id_, sink).get(id_)))

    @app.post("/subscriptions", tags=["subscriptions"], status_code=201)
    async def create(request: Request, wanted: Wanted) -> dict[str, Any]:
        """A new subscription. The answer names the position that it begins after and, this once, its secret."""
        given = wanted.model_dump(exclude_none=True, exclude={"sink"})
        return dict(await act(request, "a new one", book.of(wanted.sink).create, given))

    @app.patch("/subscriptions/{id_}", tags=["subscriptions"])
    async def change(
        request: Request, id_: Name, wanted: Changed, sink: SinkName = None
    ) -> dict[str, Any]:
        """Change a subscription. A new secret signs beside the old one for a day."""
        given = wanted.model_dump(exclude_none=True)
        if "filter" in wanted.model_fields_set:
            given["filter"] = wanted.filter  # null takes it out
        doing = act(request, f"change {id_}", lambda: book.where(id_, sink).change(id_, given))
        return dict(await doing)

    @app.post("/subscriptions/{id_}/resume", tags=["subscriptions"])
    async def resume(request: Request, id_: Name, sink: SinkName = None) -> dict[str, Any]:
        """Deliver again to one that is suspended, disabled or cut off."""
        doing = act(request, f"resume {id_}", lambda: book.where(id_, sink).resume(id_))
        return dict(await doing)

    @app.delete("/subscriptions/{id_}", tags=["subscriptions"], status_code=204)
    async def remove(request: Request, id_: Name, sink: SinkName = None) -> Response:
        """Remove a subscription, with what waits and is parked for it."""
        await act(request, f"remove {id_}", lambda: book.where(id_, sink).remove(id_))
        return Response(status_code=204)

    pgstream = APIRouter(route_class=PgstreamRoute, tags=["pgstream"])

    @pgstream.post("/webhooks/subscribe", status_code=201)
    async def subscribe(request: Request, wanted: PgstreamWanted) -> Response:
        """As pgstream's receivers subscribe."""
        given = (*wanted.place, wanted.event_types or [])
        return await _as_pgstream(act(request, "subscribe", book.of(None).subscribe, *given), 201)

    @pgstream.post("/webhooks/unsubscribe")
    async def unsubscribe(request: Request, wanted: PgstreamWanted) -> Response:
        """As pgstream's receivers unsubscribe."""
        doing = act(request, "unsubscribe", book.of(None).unsubscribe, *wanted.place)
        return await _as_pgstream(doing, 200)

    app.include_router(pgstream)


def _without_details(found: Mapping[str, Any]) -> dict[str, Any]:
    """A subscription for who has not shown the token: many a path of a URL is a secret, and a filter may name values."""
    url = urlsplit(found["url"])
    sources = {name: {**each, "error": None} for name, each in found["sources"].items()}
    kept = {name: value for name, value in found.items() if name != "filter"}
    return {**kept, "url": f"{url.scheme}://{url.netloc.rpartition('@')[2]}", "sources": sources}


async def _as_pgstream(doing: Any, status: int) -> Response:
    try:
        await doing
    except PipelineFileError as error:
        return JSONResponse({"error": error.what}, 400)
    return Response(status_code=status)
