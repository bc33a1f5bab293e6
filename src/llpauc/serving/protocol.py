"""Connections whose request line and headers do not come, or do not end, are not kept.

uvicorn waits for them for ever and takes any number of bytes. The body is the gate's.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llpauc.serving import limits


class Watched(HttpToolsProtocol):
    """A connection that has `HEAD_SECONDS` and `MOST_HEAD_BYTES` for the head of each request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._deadline is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > limits.MOST_HEAD_BYTES:
            self._refuse(431, f"the headers are longer than {limits.MOST_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:  # not the first on this connection
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._has_head()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(limits.HEAD_SECONDS, self._too_late)

    def _has_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._refuse(408, f"the headers did not arrive within {limits.HEAD_SECONDS:g} s")

    def _refuse(self, status: int, message: str) -> None:
        self._has_head()
        if self.transport.is_closing():
            return
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
