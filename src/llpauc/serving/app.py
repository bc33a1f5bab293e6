"""The routes. A handler takes the served run once, at its start, and answers from that alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException

from llpauc.errors import InputError, listing
from llpauc.serving.batching import Batcher
from llpauc.serving.limits import OPEN_PATHS, Gate, Refused, error_response
from llpauc.serving.loaded_run import (
    Entry,
    Ids,
    ItemRows,
    Served,
    Wish,
    load_served,
    run_id,
    similar,
)
from llpauc.serving.metrics import CONTENT_TYPE, Metrics
from llpauc.serving.page import Beside, add_page
from llpauc.serving.schemas import (
    About,
    Health,
    Problem,
    Recommendations,
    RecommendRequest,
    Reloaded,
    SimilarItems,
    SimilarRequest,
    UserHistory,
)
from llpauc.serving.shortcut import Direct, Shortcut, said


class _AnyText(Convertor[str]):
    """An id may hold slashes and line breaks; Starlette's own `path` stops at the latter."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anytext", _AnyText())


class Serving:
    """What the server holds: the run that answers now, and the only folder it reloads from."""

    def __init__(self, folder: Path, served: Served, log: Callable[[str], None]) -> None:
        self.folder, self.served, self.log = folder, served, log
        self.metrics = Metrics()
        self.batcher: Batcher | None = None
        self._loading: asyncio.Lock | None = None

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        self._loading = asyncio.Lock()
        self.batcher = Batcher(noticed=self.metrics.ranked)
        try:
            yield
        finally:
            await self.batcher.close()

    async def reload(self) -> tuple[Served, bool]:
        """Put the run that lies in the folder in place of the one that answers: what is served
        from then on, and whether it is another one.

        Raises:
            InputError: it cannot be served; the one before answers on.
        """
        assert self._loading is not None
        async with self._loading:
            if run_id(self.folder) == self.served.run:
                self.metrics.reloaded("unchanged")
                return self.served, False
            try:
                served = await asyncio.to_thread(load_served, self.folder)
            except InputError as error:
                self.metrics.reloaded("refused")
                told = str(error).replace(f"{self.folder}/", "")
                raise InputError(told.replace(str(self.folder), "the run folder")) from None
            self.metrics.reloaded("loaded")
            self.served = served  # one assignment: a request has the old run or the new one
            return served, True


def make_app(serving: Serving, key: str | None, beside: Beside | None = None) -> FastAPI:
    """The web application.

    Args:
        serving: the run, loaded.
        key: see `Gate`.
        beside: what the page shows beside the run.
    """
    app = FastAPI(
        title="llpauc",
        version=version("llpauc"),
        summary="Recommendations from a trained run.",
        lifespan=serving.running,
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # it would tell of paths
    )
    _answer_errors(app)
    direct = _add_lists(app, serving)
    _add_upkeep(app, serving)
    add_page(app, serving, beside or Beside())
    app.add_middleware(Shortcut, routes={route.path: route for route in direct})
    app.add_middleware(Gate, key=key, metrics=serving.metrics, log=serving.log)
    if key is not None:
        _tell_of_key(app)
    return app


# --- lists --------------------------------------------------------------------------------------


def _add_lists(app: FastAPI, serving: Serving) -> list[Direct]:
    @app.post("/recommend", response_model=Recommendations, responses=_refusals(400, 404, 413, 422))
    async def recommend(asked: RecommendRequest) -> Response:
        """The best k items: of a known user, of several, or of somebody new."""
        served, batcher = serving.served, _batcher(serving)
        people, wishes = _wishes(served, asked)
        lists = await batcher.rank(served, wishes)
        told = [
            {"user": user, "items": _entries(items)}
            for user, items in zip(people, lists, strict=True)
        ]
        return _json({"run": served.run, "lists": told})

    @app.post(
        "/similar-items", response_model=SimilarItems, responses=_refusals(400, 404, 413, 422)
    )
    async def similar_items(asked: SimilarRequest) -> Response:
        """The k items most like this one."""
        served, batcher = serving.served, _batcher(serving)
        (row,) = _known(served.items, [asked.item], "item").tolist()
        found = await batcher.call(similar, served, row, asked.k)
        item = served.items.outside[row]
        return _json({"run": served.run, "item": item, "items": _entries(found)})

    @app.get("/users/{id:anytext}", response_model=UserHistory, responses=_refusals(404))
    async def user_history(id: Annotated[str, InPath(examples=["ann"])]) -> Response:
        """What a user has, in the ids they came with."""
        served = serving.served
        (row,) = _known(served.users, [id], "user").tolist()
        items = [served.items.outside[item] for item in served.items_of(row).tolist()]
        user = served.users.outside[row]
        return _json({"run": served.run, "user": user, "items": items})

    return [
        Direct("/recommend", RecommendRequest, recommend),
        Direct("/similar-items", SimilarRequest, similar_items),
    ]


def _wishes(served: Served, asked: RecommendRequest) -> tuple[list[Any], list[Wish]]:
    """Whom the lists are for (None is somebody new), and what each is to be."""
    if sum(given is not None for given in (asked.user, asked.users, asked.items)) != 1:
        raise Refused(422, "give one of user, users (known people) and items (somebody new)")
    allow, deny, has = (
        None if ids is None else _known(served.items, ids, "item")
        for ids in (asked.allow, asked.deny, asked.items)
    )
    wish = Wish(asked.k, -1, has, asked.exclude_seen, allow, deny)
    if has is not None:
        return [None], [wish]
    users = [asked.user] if asked.users is None else asked.users
    rows = _known(served.users, users, "user").tolist()
    people = [served.users.outside[row] for row in rows]
    return people, [replace(wish, user=row) for row in rows]


def _known(ids: Ids, asked: Sequence[Any], what: str) -> ItemRows:
    rows = ids.find(asked)
    unknown = [repr(asked[place]) for place in (rows < 0).nonzero()[0].tolist()]
    if unknown:
        raise Refused(404, f"unknown {what}: {listing(unknown, 5)}")
    return rows


def _json(answer: dict[str, Any]) -> Response:
    return Response(to_json(answer), media_type="application/json")


def _entries(items: Sequence[Entry]) -> list[dict[str, Any]]:
    return [{"item": item, "score": score} for item, score in items]


def _batcher(serving: Serving) -> Batcher:
    assert serving.batcher is not None  # it is there as long as the application runs
    return serving.batcher


# --- upkeep -------------------------------------------------------------------------------------


_AS_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"example": 'llpauc_run_info{run="9f2c",model="mf"} 1'}}}
}


def _add_upkeep(app: FastAPI, serving: Serving) -> None:
    @app.post("/reload", response_model=Reloaded, responses=_refusals(409))
    async def reload() -> Response:
        """Serve the run that lies in the folder now; one that is damaged is refused."""
        try:
            served, changed = await serving.reload()
        except InputError as error:
            raise Refused(409, f"{error}; run {serving.served.run} answers on") from None
        return JSONResponse({**served.about, "changed": changed})

    @app.get("/healthz", response_model=Health)
    async def healthz() -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", response_model=About, responses={503: {"model": Problem}})
    async def readyz() -> Response:
        """A run is loaded and can be asked for lists."""
        if serving.batcher is None or not serving.batcher.alive:
            return error_response(503, "the ranking threads are stopped; start the server again")
        return JSONResponse(serving.served.about)

    @app.get("/metrics", response_class=Response, responses=_AS_TEXT)
    async def metrics() -> Response:
        """Counts and times, as Prometheus reads them."""
        return Response(serving.metrics.text(serving.served.about), media_type=CONTENT_TYPE)


# --- errors and what OpenAPI says of them -------------------------------------------------------


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


def _answer_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Any) -> Response:
        return error_response(error.status, str(error))

    async def by_starlette(request: Request, error: Any) -> Response:
        return error_response(error.status_code, str(error.detail), error.headers)

    async def invalid(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        return error_response(422, said({**first, "loc": first["loc"][1:]}))

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(HTTPException, by_starlette)
    app.add_exception_handler(RequestValidationError, invalid)


def _tell_of_key(app: FastAPI) -> None:
    schema = app.openapi()
    schemes = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
    schema.setdefault("components", {})["securitySchemes"] = schemes
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in OPEN_PATHS else [{"key": []}]
            if path not in OPEN_PATHS:
                operation["responses"]["401"] = {"description": "No key, or a wrong one."}
