"""Limits of the server, checked before a body is parsed: key, size, time, number of requests.

A refused request is answered with {"error": "one line"}.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llpauc.serving.metrics import Metrics

MAX_K = 1000
MAX_USERS = 256  # in one request
MAX_ITEMS = 10_000  # in a history, and in an allow or deny list
MAX_BODY_BYTES = 1 << 20
MAX_IN_PROGRESS = 1024  # requests at once
BODY_SECONDS = 10.0  # until the body has arrived
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/"})  # without a key; the page contains no data
# Answered also when there are too many requests.
_MONITORING_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_MAX_ERROR = 300  # characters; ids can be longer
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

logger = logging.getLogger(__name__)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    line = " ".join(message.split())
    if len(line) > _MAX_ERROR:
        line = line[:_MAX_ERROR] + "..."
    body = json.dumps({"error": line})  # ASCII, since an id may contain a lone surrogate
    return Response(body, status, headers, media_type="application/json")


class RequestLimits:
    """ASGI middleware that checks every request, and counts and times the answers.

    Args:
        app: the application.
        key: the API key that all paths but `OPEN_PATHS` require. If it is None, the Host header
            must be a loopback name: a web page whose host name resolves to this machine cannot
            read from the server (DNS rebinding).
        metrics: records every answer.
    """

    def __init__(self, app: ASGIApp, *, key: str | None, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 0, time.perf_counter()

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.in_progress += 1
        try:
            self._check(scope)
            await self._app(scope, _limited(receive), send_and_record)
        except HTTPException as refused:
            # The body is not read, so the connection cannot be used for another request.
            headers = {**(refused.headers or {}), "connection": "close"}
            answer = error_response(refused.status_code, refused.detail, headers)
            await answer(scope, receive, send_and_record)
        except ClientDisconnect:
            pass
        except Exception as error:
            logger.error("a request failed: %s", _error_location(error))
            if not status:
                answer = error_response(500, "the server failed; see its log")
                await answer(scope, receive, send_and_record)
        finally:
            self._metrics.in_progress -= 1
            if status:
                pattern = getattr(scope.get("route"), "path_format", "other")
                self._metrics.answered(pattern, status, time.perf_counter() - started)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS:
            if self._key is None:
                if _host_name(headers.get(b"host", b"")) not in _LOOPBACK_NAMES:
                    raise HTTPException(403, "without an API key, the Host must be localhost")
            elif not hmac.compare_digest(_given_key(headers), self._key):
                raise HTTPException(401, "an API key is required: send the header X-API-Key")
        if self._metrics.in_progress > MAX_IN_PROGRESS and scope["path"] not in _MONITORING_PATHS:
            busy = f"{MAX_IN_PROGRESS} requests in progress; try again later"
            raise HTTPException(429, busy, {"retry-after": "1"})
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            raise _body_too_long()


def _given_key(headers: Mapping[bytes, bytes]) -> bytes:
    bearer = headers.get(b"authorization", b"")
    return bearer[7:] if bearer[:7].lower() == b"bearer " else headers.get(b"x-api-key", b"")


def _host_name(header: bytes) -> str | None:
    """
    >>> _host_name(b"[::1]:8000"), _host_name(b"localhost"), _host_name(b"[")
    ('::1', 'localhost', None)
    """
    try:
        return urlsplit("//" + header.decode("ascii")).hostname
    except ValueError:
        return None


def _body_too_long() -> HTTPException:
    # The header also where the application turns the exception into an answer.
    long = f"the body is longer than {MAX_BODY_BYTES} bytes"
    return HTTPException(413, long, {"connection": "close"})


def _limited(receive: Receive) -> Receive:
    """`receive` with a limit on the size of the body and on the time until it has arrived."""
    size, complete = 0, False
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS

    async def limited_receive() -> Message:
        nonlocal size, complete
        try:
            async with asyncio.timeout_at(None if complete else deadline):
                message = await receive()
        except TimeoutError:
            late = f"the body did not arrive within {BODY_SECONDS:g} s"
            raise HTTPException(408, late, {"connection": "close"}) from None
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            raise _body_too_long()
        complete = not message.get("more_body", False)
        return message

    return limited_receive


def _error_location(error: Exception) -> str:
    """The type and the source line of an error; its message could contain ids or paths."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
