"""The page at `/` and the three routes it asks. They are the page's own and not in the OpenAPI.

The page itself holds no data and wants no key; it asks the person for one where the routes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from llpauc.report.document import policy, render
from llpauc.report.people import ItemTable, as_json, find_users, view_users
from llpauc.serving.limits import Refused
from llpauc.serving.loaded_run import Served

if TYPE_CHECKING:
    from llpauc.serving.app import Serving

_LONGEST_TEXT = 1000  # characters of what is looked for
_SAFE = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
_NOT_KEPT = {"cache-control": "no-store", **_SAFE}


@dataclass(frozen=True)
class Beside:
    """What the page shows beside the run.

    Args:
        titles: of items, by id.
        tuning: of `llpauc.report.tuning.read_tuning`.
    """

    titles: Mapping[str, str] = field(default_factory=dict)
    tuning: dict[str, Any] | None = None


def add_page(app: FastAPI, serving: Serving, beside: Beside) -> None:
    page, rules = render(), f"{policy(served=True)}; frame-ancestors 'none'"

    @app.get("/", include_in_schema=False)
    async def show() -> Response:
        headers = {"content-security-policy": rules, "cache-control": "no-cache", **_SAFE}
        return Response(page, headers=headers, media_type="text/html; charset=utf-8")

    @app.get("/page/about", include_in_schema=False)
    async def about() -> Response:
        served = serving.served
        facts = {**served.facts, "run": served.run}
        return JSONResponse({"runs": [facts], "tuning": beside.tuning}, headers=_NOT_KEPT)

    @app.get("/page/users", include_in_schema=False)
    async def users(text: str = "") -> Response:
        served = serving.served
        if len(text) > _LONGEST_TEXT:
            raise Refused(422, f"text: at most {_LONGEST_TEXT} characters are looked for")
        ids = served.fitted.user_ids
        some = served.facts.get("some_users", [])
        found = await asyncio.to_thread(find_users, ids, text) if text else some
        return JSONResponse({"run": served.run, "users": found}, headers=_NOT_KEPT)

    @app.get("/page/user", include_in_schema=False)
    async def user(id: str = "") -> Response:
        served, batcher = serving.served, serving.batcher
        assert batcher is not None  # it is there as long as the application runs
        row = int(served.users.find([id])[0])
        if row < 0:
            raise Refused(404, f"unknown user: {id!r}")
        told = await batcher.call(_view, served, row, beside.titles)
        return JSONResponse({"run": served.run, "user": id, **told}, headers=_NOT_KEPT)


def _view(served: Served, row: int, titles: Mapping[str, str]) -> dict[str, Any]:
    table = ItemTable(titles)
    (view,) = view_users(served.fitted, np.array([row]))
    return {"view": as_json(view, served.fitted.item_ids, table), "items": table.entries}
