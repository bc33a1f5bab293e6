"""Who may ask, how much, and how a refusal looks: {"error": "one line"}.

Everything here is decided before the body is parsed, most of it before the body is read.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llpauc.serving.metrics import Metrics

MOST_K = 1000
MOST_USERS = 256  # in one request
MOST_ITEMS = 10_000  # in a history, and in an allow or deny list
MOST_BYTES = 1 << 20  # of a body
MOST_UNDER_WAY = 1024  # requests at once
BODY_SECONDS = 10.0  # for a body to arrive
MOST_HEAD_BYTES = 1 << 16  # of the request line and the headers
HEAD_SECONDS = 10.0  # for them to arrive
# No key, no queue: for whoever watches the server, and the page, which has no data in it.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/"})
_LONGEST_ERROR = 300  # characters; an id may have many more
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Refused(Exception):
    """A request that is answered with `status` and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    line = " ".join(message.split())
    if len(line) > _LONGEST_ERROR:
        line = line[:_LONGEST_ERROR] + "..."
    # ASCII alone: an id may hold half a surrogate pair, which UTF-8 has no bytes for.
    body = json.dumps({"error": line})
    return Response(body, status, headers, media_type="application/json")


class Gate:
    """ASGI middleware: host, key, number under way, size and time of the body, times and counts.

    Args:
        app: what is behind the gate.
        key: wanted of every request but those to `OPEN_PATHS`; None where nobody needs one. Then
            only requests that call the server by a loopback name pass: a page on the web that has
            its own name point here is not to read what the browser's owner can.
        metrics: is told of every answer.
        log: is told of what went wrong here, in a line.
    """

    def __init__(
        self, app: ASGIApp, *, key: str | None, metrics: Metrics, log: Callable[[str], None]
    ) -> None:
        self._app, self._metrics, self._log = app, metrics, log
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 0, time.perf_counter()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.under_way += 1
        try:
            self._check(scope)
            await self._app(scope, await _whole_body(scope, receive), send_and_note)
        except _Left:
            pass
        except Refused as refused:
            # The rest of the body is not wanted, so the connection cannot go on.
            answer = error_response(refused.status, str(refused), {"connection": "close"})
            await answer(scope, receive, send_and_note)
        except Exception as error:
            self._log(f"a request failed: {_where(error)}")
            if not status:
                answer = error_response(500, "the server failed; its log says where")
                await answer(scope, receive, send_and_note)
        finally:
            self._metrics.under_way -= 1
            if status:
                seconds = time.perf_counter() - started
                self._metrics.answered(_pattern(scope), status, seconds)

    def _check(self, scope: Scope) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        headers = dict(scope["headers"])
        if self._key is None:
            if _host_name(headers.get(b"host", b"")) not in _LOOPBACK_NAMES:
                raise Refused(403, "without an API key the server answers to localhost alone")
        elif not _has_key(headers, self._key):
            raise Refused(401, "an API key is wanted: send the header X-API-Key")
        if self._metrics.under_way > MOST_UNDER_WAY:
            raise Refused(429, f"{MOST_UNDER_WAY} requests are under way; try again in a moment")


class _Left(Exception):
    """The client is gone: there is nobody to answer."""


def _has_key(headers: Mapping[bytes, bytes], key: bytes) -> bool:
    bearer = headers.get(b"authorization", b"")
    given = bearer[7:] if bearer[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")
    return hmac.compare_digest(given, key)


def _host_name(header: bytes) -> str | None:
    """
    >>> _host_name(b"[::1]:8000"), _host_name(b"localhost"), _host_name(b"[")
    ('::1', 'localhost', None)
    """
    try:
        return urlsplit("//" + header.decode("ascii")).hostname
    except ValueError:
        return None


async def _whole_body(scope: Scope, receive: Receive) -> Receive:
    """Read the body, refusing as soon as it is known to be too long; a `receive` that has it."""
    too_long = Refused(413, f"the body is longer than the {MOST_BYTES} bytes that are taken")
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if length.isdigit() and int(length[:20]) > MOST_BYTES:
        raise too_long
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Left
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MOST_BYTES:
                    raise too_long
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    whole: Message | None = {"type": "http.request", "body": b"".join(parts), "more_body": False}

    async def again() -> Message:
        nonlocal whole
        if whole is None:
            return await receive()
        message, whole = whole, None
        return message

    return again


def _pattern(scope: Scope) -> str:
    """The route, not the path: that has no end of values."""
    return str(scope.get("pattern") or getattr(scope.get("route"), "path_format", "other"))


def _where(error: Exception) -> str:
    """The kind of error and the line it came from; its message might hold ids or paths."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
