"""The routes that take a JSON body, without FastAPI's way to them, which costs more than answering.

The function and the model of the body are those that FastAPI has been given, so that the OpenAPI it
writes is true of both ways.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llpauc.serving.limits import Refused, error_response


@dataclass(frozen=True)
class Direct:
    """What answers a POST: `model` is the type of the one argument of `answer`."""

    path: str
    model: type[BaseModel]
    answer: Callable[[Any], Awaitable[Response]]


class Shortcut:
    """ASGI middleware, to stand behind the gate, which has read the whole body."""

    def __init__(self, app: ASGIApp, *, routes: Mapping[str, Direct]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["pattern"] = route.path
        try:
            asked = parse(route.model, scope, (await receive())["body"])
            response = await route.answer(asked)
        except Refused as refused:
            response = error_response(refused.status, str(refused))
        await response(scope, receive, send)


def parse(model: type[BaseModel], scope: Scope, body: bytes) -> BaseModel:
    """
    Raises:
        Refused: no JSON (400), or not what is wanted (422).
    """
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    kind = kind.split(b";", 1)[0].strip().lower()
    if not body or not (kind == b"application/json" or kind.endswith(b"+json")):
        raise Refused(422, _OBJECT_WANTED)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        raise Refused(400, f"the body is no JSON: {first['ctx']['error']}")
    raise Refused(422, said(first))


_OBJECT_WANTED = "a JSON object is wanted, with the header Content-Type: application/json"


def said(error: Mapping[str, Any]) -> str:
    """Which field, and what is wanted of it.

    >>> said({"loc": ("users", 2, "str"), "msg": "Input should be a valid string"})
    'users.2: should be text or a whole number'
    """
    if not error["loc"]:
        return _OBJECT_WANTED
    field, *inner = error["loc"]
    place = ".".join(str(part) for part in (field, *inner) if part == field or type(part) is int)
    kinds = {str(part).split("[")[0] for part in inner}
    if kinds & {"str", "int", "constrained-str"}:
        return f"{place}: should be text or a whole number"
    return f"{place}: {error['msg'].removeprefix('Input ')}"
