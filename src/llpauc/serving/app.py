"""The routes. A handler reads the current run once, at its start, and answers from it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException as StarletteHTTPException

from llpauc.data.catalogue import Catalogue
from llpauc.errors import InputError, listing
from llpauc.report.document import page_policy, render_page
from llpauc.report.users import ItemTable, find_users, view_users
from llpauc.serving import schemas
from llpauc.serving.batching import Batcher
from llpauc.serving.limits import OPEN_PATHS, RequestLimits, error_response
from llpauc.serving.loaded_run import (
    Entry,
    IdTable,
    ItemIndices,
    ListRequest,
    LoadedRun,
    current_run_id,
    load_run,
    similar_items,
)
from llpauc.serving.metrics import CONTENT_TYPE, Metrics

_MAX_SEARCH_TEXT = 1000  # characters
_OBJECT_REQUIRED = "the body must be a JSON object, with the header Content-Type: application/json"
_SAFE = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
_NOT_STORED = {"cache-control": "no-store", **_SAFE}


class ServingState:
    """The current run, and the folder from which it is loaded and reloaded.

    `catalogue` replaces that of the run, and `tuning` (from `read_tuning`) is for the page. Runs
    must be signed with the `signing_key`, if it is given.
    """

    def __init__(
        self,
        folder: Path,
        catalogue: Catalogue | None = None,
        tuning: dict[str, Any] | None = None,
        signing_key: str | None = None,
        exclude: str | None = None,
    ) -> None:
        self.folder, self.tuning = folder, tuning
        self._load_options = signing_key, exclude, catalogue
        self.run = load_run(folder, *self._load_options)
        self.metrics = Metrics()
        self.batcher: Batcher
        self._reloading = asyncio.Lock()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.batcher = Batcher(on_batch=self.metrics.lists.observe)
        try:
            yield
        finally:
            await self.batcher.close()

    async def reload(self) -> tuple[LoadedRun, bool]:
        """Load the run that is now in the folder: the current run, and whether it has changed.

        Raises:
            InputError: it cannot be served; the previous run stays current.
        """
        async with self._reloading:
            if current_run_id(self.folder) == self.run.run_id:
                self.metrics.reloads.labels("unchanged").inc()
                return self.run, False
            try:
                run = await asyncio.to_thread(load_run, self.folder, *self._load_options)
            except InputError as error:
                self.metrics.reloads.labels("refused").inc()
                message = str(error).replace(f"{self.folder}/", "")
                raise InputError(message.replace(str(self.folder), "the run folder")) from None
            self.metrics.reloads.labels("loaded").inc()
            self.run = run  # one assignment: a request sees either the old run or the new one
            return run, True


def make_app(state: ServingState, key: str | None) -> FastAPI:
    """The web application; for the API key, see `RequestLimits`."""
    app = FastAPI(
        title="llpauc",
        version=version("llpauc"),
        summary="Recommendations from a trained run.",
        routes=[*router.routes],
        lifespan=state.lifespan,
        docs_url=None,  # both pages load scripts from other servers
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # paths contain user ids
    )
    app.state.serving = state
    app.add_exception_handler(StarletteHTTPException, _on_http_error)
    app.add_middleware(RequestLimits, key=key, metrics=state.metrics)
    if key is not None:
        _document_key(app)
    return app


class _AnyText(PathConvertor):
    """Any id, with slashes and line breaks; Starlette's `path` does not match line breaks."""

    regex = "(?s:.+)"


class _JSONRoute(APIRoute):
    """A route whose body is parsed and validated by pydantic in one step.

    FastAPI's own handler of bodies accepts lone surrogates and UTF-16, and with it the server
    answers 15 % fewer requests per second (100,000 items, 64 connections).
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return super().get_route_handler()
        model: Any = self.body_field.field_info.annotation

        async def handle(request: Request) -> Response:
            body = await request.body()
            media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
            if not body or not media_type.endswith(("/json", "+json")):
                raise HTTPException(422, _OBJECT_REQUIRED)
            try:
                value = model.model_validate_json(body)
            except ValidationError as error:
                raise _invalid_body(error) from None
            response: Response = await self.endpoint(request, value)
            return response

        return handle


register_url_convertor("anytext", _AnyText())
router = APIRouter(route_class=_JSONRoute)


def _state(request: Request) -> ServingState:
    return cast(ServingState, request.app.state.serving)


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error answers for the OpenAPI."""
    return {status: {"model": schemas.Problem} for status in statuses}


# --- lists --------------------------------------------------------------------------------------


@router.post(
    "/recommend", response_model=schemas.Recommendations, responses=_errors(400, 404, 413, 422)
)
async def recommend(request: Request, body: schemas.RecommendRequest) -> Response:
    """The best k items of a known user, of several known users, or of a new user."""
    state = _state(request)
    run = state.run
    if body.where is None and body.per is None:
        users, requests = _list_requests(run, body)
    else:  # a condition on a large catalogue takes some milliseconds
        users, requests = await state.batcher.call(_list_requests, run, body)
    lists = zip(users, await state.batcher.rank(run, requests), strict=True)
    answers = [{"user": user, "items": _entries(items)} for user, items in lists]
    return _json({"run": run.run_id, "lists": answers})


@router.post(
    "/similar-items", response_model=schemas.SimilarItems, responses=_errors(400, 404, 413, 422)
)
async def similar(request: Request, body: schemas.SimilarRequest) -> Response:
    """The k items most similar to an item."""
    state = _state(request)
    run = state.run
    item_idx = int(_known(run.items, [body.item], "item")[0])
    items = await state.batcher.call(similar_items, run, item_idx, body.k)
    return _json({"run": run.run_id, "item": run.items.ids[item_idx], "items": _entries(items)})


@router.get("/users/{id:anytext}", response_model=schemas.UserHistory, responses=_errors(404))
async def user_history(
    request: Request, id: Annotated[str, PathParameter(examples=["ann"])]
) -> Response:
    """The items of a user."""
    run = _state(request).run
    user_idx = int(_known(run.users, [id], "user")[0])
    items = [run.items.ids[item] for item in run.history(user_idx).tolist()]
    return _json({"run": run.run_id, "user": run.users.ids[user_idx], "items": items})


def _list_requests(
    run: LoadedRun, body: schemas.RecommendRequest
) -> tuple[list[Any], list[ListRequest]]:
    """User ids (None for a new user) and the lists to rank."""
    if sum(value is not None for value in (body.user, body.users, body.items)) != 1:
        raise HTTPException(422, "give one of user, users (known users) and items (a new user)")
    allow, deny, history = (
        None if ids is None else _known(run.items, ids, "item")
        for ids in (body.allow, body.deny, body.items)
    )
    try:
        chosen = run.fitted.catalogue_rules.allowed(body.where)
        limit = run.fitted.catalogue_rules.limit(body.at_most, body.per)
    except InputError as error:
        raise HTTPException(422, str(error)) from None
    if chosen is not None:
        allow = chosen if allow is None else np.intersect1d(allow, chosen)
    request = ListRequest(body.k, -1, history, body.exclude_seen, allow, deny, limit)
    if history is not None:
        return [None], [request]
    user_idx = _known(run.users, body.users or [body.user], "user").tolist()
    requests = [replace(request, user_idx=one) for one in user_idx]
    return [run.users.ids[one] for one in user_idx], requests


def _known(table: IdTable, ids: Sequence[Any], kind: str) -> ItemIndices:
    indices = table.indices(ids)
    unknown = [repr(ids[n]) for n in np.flatnonzero(indices < 0).tolist()]
    if unknown:
        raise HTTPException(404, f"unknown {kind}: {listing(unknown, 5)}")
    return indices


def _entries(items: Sequence[Entry]) -> list[dict[str, Any]]:
    return [{"item": item, "score": score} for item, score in items]


def _json(answer: dict[str, Any]) -> Response:
    return Response(to_json(answer), media_type="application/json")


# --- operation ----------------------------------------------------------------------------------

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"example": 'llpauc_run_info{run="9f2c",model="mf"} 1'}}}
}


@router.post("/reload", response_model=schemas.Reloaded, responses=_errors(409))
async def reload(request: Request) -> Response:
    """Serve the run that is now in the folder; a damaged run is refused."""
    state = _state(request)
    try:
        run, changed = await state.reload()
    except InputError as error:
        raise HTTPException(409, f"{error}; run {state.run.run_id} is still served") from None
    return JSONResponse({**run.about, "changed": changed})


@router.get("/healthz", response_model=schemas.Health)
async def healthz() -> Response:
    """The process responds."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", response_model=schemas.About, responses=_errors(503))
async def readyz(request: Request) -> Response:
    """A run is loaded and lists can be requested."""
    state = _state(request)
    if not state.batcher.is_open:
        raise HTTPException(503, "the ranking threads are stopped; restart the server")
    return JSONResponse(state.run.about)


@router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics(request: Request) -> Response:
    """Counts and times in Prometheus' text format."""
    state = _state(request)
    return Response(state.metrics.text(state.run.about), media_type=CONTENT_TYPE)


# --- the page at / and its data; these routes are not part of the OpenAPI -----------------------


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page contains no data and needs no key; it asks the user for the key of its data."""
    policy = f"{page_policy(served=True)}; frame-ancestors 'none'"
    headers = {"content-security-policy": policy, "cache-control": "no-cache", **_SAFE}
    return Response(render_page(), headers=headers, media_type="text/html; charset=utf-8")


@router.get("/page/about", include_in_schema=False)
async def page_about(request: Request) -> Response:
    state = _state(request)
    runs = [{**state.run.summary, "run": state.run.run_id}]
    return JSONResponse({"runs": runs, "tuning": state.tuning}, headers=_NOT_STORED)


@router.get("/page/users", include_in_schema=False)
async def page_users(request: Request, text: str = "") -> Response:
    run = _state(request).run
    if len(text) > _MAX_SEARCH_TEXT:
        raise HTTPException(422, f"text: must have at most {_MAX_SEARCH_TEXT} characters")
    users = run.summary.get("suggested_users", [])
    if text:
        users = await asyncio.to_thread(find_users, run.fitted.user_ids, text)
    return JSONResponse({"run": run.run_id, "users": users}, headers=_NOT_STORED)


@router.get("/page/user", include_in_schema=False)
async def page_user(request: Request, id: str = "") -> Response:
    state = _state(request)
    run, table = state.run, ItemTable(state.run.titles)
    user_idx = _known(run.users, [id], "user")

    def view() -> Any:
        return view_users(run.fitted, user_idx)[0].as_json(run.fitted.item_ids, table)

    answer = {"view": await state.batcher.call(view), "items": table.entries}
    return JSONResponse({"run": run.run_id, "user": id, **answer}, headers=_NOT_STORED)


# --- errors -------------------------------------------------------------------------------------


async def _on_http_error(request: Request, error: Any) -> Response:
    return error_response(error.status_code, str(error.detail), error.headers)


def _invalid_body(error: ValidationError) -> HTTPException:
    """The first problem: which field, and what is required of it."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return HTTPException(400, f"the body is not valid JSON: {first['ctx']['error']}")
    if not first["loc"]:
        return HTTPException(422, _OBJECT_REQUIRED)
    name, *inner = first["loc"]
    path = ".".join(str(part) for part in (name, *inner) if part == name or type(part) is int)
    if {str(part).split("[")[0] for part in inner} & {"str", "int", "constrained-str"}:
        return HTTPException(422, f"{path}: should be text or a whole number")  # a union: an id
    return HTTPException(422, f"{path}: {first['msg'].removeprefix('Input ')}")


def _document_key(app: FastAPI) -> None:
    """Add the API key to the OpenAPI."""
    schema = app.openapi()
    schemes = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
    schema.setdefault("components", {})["securitySchemes"] = schemes
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in OPEN_PATHS else [{"key": []}]
            if path not in OPEN_PATHS:
                operation["responses"]["401"] = {"description": "No key, or a wrong key."}
