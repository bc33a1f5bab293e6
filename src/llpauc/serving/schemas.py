"""What requests and answers are; OpenAPI is made of this."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from llpauc.serving.limits import MAX_ITEMS, MAX_K, MAX_USERS

Id = Annotated[StrictStr, Field(min_length=1)] | StrictInt
ItemList = Annotated[list[Id], Field(max_length=MAX_ITEMS)]
K = Annotated[int, Field(ge=1, le=MAX_K, strict=True, description="length of the lists")]
_ENTRIES = [{"item": "book-12", "score": 3.25}, {"item": "book-3", "score": 2.5}]


def _examples(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": list(examples)})


class RecommendRequest(BaseModel):
    """Lists for a known user, for several, or for somebody new; one of user, users, items."""

    model_config = _examples(
        {"user": "ann", "k": 2},
        {"users": ["ann", "bob"], "k": 2, "deny": ["book-7"]},
        {"items": ["book-7", "book-9"], "k": 2},
    )

    user: Id | None = Field(None, description="a known user")
    users: Annotated[list[Id], Field(min_length=1, max_length=MAX_USERS)] | None = Field(
        None, description="several known users"
    )
    items: ItemList | None = Field(
        None, description="what somebody new has; none at all gives what is liked by most"
    )
    k: K = 20
    exclude_seen: StrictBool = Field(True, description="leave out what they have")
    allow: ItemList | None = Field(None, description="choose from these items alone")
    deny: ItemList | None = Field(None, description="leave out these items")


class SimilarRequest(BaseModel):
    """Items like this one."""

    model_config = _examples({"item": "book-7", "k": 2})

    item: Id
    k: K = 20


class ScoredItem(BaseModel):
    item: Id
    score: float


class UserList(BaseModel):
    user: Id | None = Field(description="null for somebody new")
    items: list[ScoredItem] = Field(description="best first; fewer than k where no more are left")


class Recommendations(BaseModel):
    model_config = _examples(
        {"run": "9f2c41d07a6b3e58", "lists": [{"user": "ann", "items": _ENTRIES}]}
    )

    run: str = Field(description="the run that all of this answer comes from")
    lists: list[UserList]


class SimilarItems(BaseModel):
    model_config = _examples({"run": "9f2c41d07a6b3e58", "item": "book-7", "items": _ENTRIES})

    run: str
    item: Id
    items: list[ScoredItem]


class UserHistory(BaseModel):
    model_config = _examples(
        {"run": "9f2c41d07a6b3e58", "user": "ann", "items": ["book-7", "book-9"]}
    )

    run: str
    user: Id
    items: list[Id] = Field(description="what the run knows the user has, in no order of time")


class About(BaseModel):
    model_config = _examples(
        {"run": "9f2c41d07a6b3e58", "model": "mf", "users": 943, "items": 1682}
    )

    run: str
    model: str
    users: int
    items: int


class Reloaded(About):
    model_config = _examples(
        {"run": "9f2c41d07a6b3e58", "model": "mf", "users": 943, "items": 1682, "changed": True}
    )

    changed: bool = Field(description="false where the folder holds the run that answers already")


class Health(BaseModel):
    model_config = _examples({"status": "ok"})

    status: str


class Problem(BaseModel):
    """Every refusal."""

    model_config = _examples({"error": "unknown user 'ann'"})

    error: str
