"""Requests and answers; the OpenAPI is generated from these models."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from llpauc.data.catalogue import MAX_CONDITION
from llpauc.serving.limits import MAX_ITEMS, MAX_K, MAX_USERS

Id = Annotated[StrictStr, Field(min_length=1)] | StrictInt
ItemList = Annotated[list[Id], Field(max_length=MAX_ITEMS)]
UserList = Annotated[list[Id], Field(min_length=1, max_length=MAX_USERS)]
Condition = Annotated[StrictStr, Field(min_length=1, max_length=MAX_CONDITION)]
AtMost = Annotated[int, Field(ge=1, le=MAX_K, strict=True)]
K = Annotated[int, Field(ge=1, le=MAX_K, strict=True, description="length of the lists")]

_RUN = {"run": "9f2c41d07a6b3e58"}
_ABOUT = {**_RUN, "model": "mf", "users": 943, "items": 1682}
_ITEMS = [{"item": "book-12", "score": 3.25}, {"item": "book-3", "score": 2.5}]


def _examples(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": list(examples)})


class RecommendRequest(BaseModel):
    """One of user, users and items."""

    model_config = _examples(
        {"user": "ann", "k": 2},
        {"users": ["ann", "bob"], "k": 2, "deny": ["book-7"]},
        {"items": ["book-7", "book-9"], "k": 2},
        {"user": "ann", "where": "in_stock and price < 20", "at_most": 2, "per": "category"},
    )

    user: Id | None = Field(None, description="a known user")
    users: UserList | None = Field(None, description="several known users")
    items: ItemList | None = Field(None, description="the history of a new user; it may be empty")
    k: K = 20
    exclude_seen: StrictBool = Field(
        True, description="leave out the items of the history (those that the run excludes)"
    )
    allow: ItemList | None = Field(None, description="choose from these items only")
    deny: ItemList | None = Field(None, description="leave out these items")
    where: Condition | None = Field(None, description="only items for which it is true")
    at_most: AtMost | None = Field(None, description="items with the same value of `per`")
    per: StrictStr | None = Field(None, description="a column of the catalogue")


class SimilarRequest(BaseModel):
    model_config = _examples({"item": "book-7", "k": 2})

    item: Id
    k: K = 20


class ScoredItem(BaseModel):
    item: Id
    score: float


class RecommendedList(BaseModel):
    user: Id | None = Field(description="null for a new user")
    items: list[ScoredItem] = Field(description="best first; fewer than k if no more are left")


class Recommendations(BaseModel):
    model_config = _examples({**_RUN, "lists": [{"user": "ann", "items": _ITEMS}]})

    run: str = Field(description="the run that the whole answer comes from")
    lists: list[RecommendedList]


class SimilarItems(BaseModel):
    model_config = _examples({**_RUN, "item": "book-7", "items": _ITEMS})

    run: str
    item: Id
    items: list[ScoredItem]


class UserHistory(BaseModel):
    model_config = _examples({**_RUN, "user": "ann", "items": ["book-7", "book-9"]})

    run: str
    user: Id
    items: list[Id] = Field(description="the items of the user, in no particular order")


class About(BaseModel):
    model_config = _examples(_ABOUT)

    run: str
    model: str
    users: int
    items: int


class Reloaded(About):
    model_config = _examples({**_ABOUT, "changed": True})

    changed: bool = Field(description="false if the folder contains the run that is served")


class Health(BaseModel):
    model_config = _examples({"status": "ok"})

    status: str


class Problem(BaseModel):
    """The answer to every refused request."""

    model_config = _examples({"error": "unknown user: 'ann'"})

    error: str
