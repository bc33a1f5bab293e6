"""Connections with limits; uvicorn itself waits without end and stores any number of bytes.

Limits of a connection: the time and the size of the headers, and the time in which the client reads
the answer. Limits of all connections: their number, and the bytes of answers that are not sent.
"""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 1 << 16  # request line, headers, framing of chunks, trailers
HEADER_SECONDS = 10.0  # until the request line and the headers have arrived
WRITE_SECONDS = 10.0  # in which a client must read `MIN_READ_BYTES` of an answer
MIN_READ_BYTES = 1 << 16
MAX_UNSENT_BYTES = 1 << 27  # of all answers that clients have not read
MAX_CONNECTIONS = 8192


def max_connections() -> int:
    """At most half of the file descriptors of this process."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Connection(HttpToolsProtocol):
    """A connection that is closed when its client, or all clients together, exceed a limit."""

    connections: set[Connection]  # type: ignore[assignment]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timers: dict[str, asyncio.TimerHandle] = {}  # headers, answer
        self._header_bytes = 0
        self._unsent = 0
        self._answered = False  # the answer is complete, but not sent
        self._waiting_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # `pause_writing` is called for the first unsent byte
        self._start_header_timer()
        if len(self.connections) > max_connections():
            waiting = (one for one in self.connections if one.is_waiting)
            min(waiting, key=lambda one: one._waiting_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer("headers")
        self._stop_timer("answer")
        super().connection_lost(exc)

    @property
    def is_waiting(self) -> bool:
        """For its client: to send a request, or the rest of it, or to read the answer."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    # --- headers --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"the headers are longer than {MAX_HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if "headers" not in self._timers:  # a further request on this connection
            self._start_header_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer("headers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._header_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._header_bytes = 0
        super().on_message_complete()

    def _start_header_timer(self) -> None:
        self._waiting_since = self.loop.time()
        late = f"the headers did not arrive within {HEADER_SECONDS:g} s"
        self._timers["headers"] = self.loop.call_later(HEADER_SECONDS, self._refuse, 408, late)

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    # --- answers --------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()  # no further request before this answer is sent
        self._waiting_since = self.loop.time()
        self._unsent = self.transport.get_write_buffer_size()
        self._timers["answer"] = self.loop.call_later(WRITE_SECONDS, self._check_progress)
        self._limit_unsent()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer("answer")
        if self._answered:
            self._answered = False
            super().on_response_complete()  # reads on, or starts a request that has been read

    def on_response_complete(self) -> None:
        self._waiting_since = self.loop.time()
        if self.flow.write_paused:
            self._answered = True
        else:
            super().on_response_complete()

    def _check_progress(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if self._unsent - unsent < MIN_READ_BYTES:
            self.transport.abort()
            return
        self._unsent = unsent
        self._timers["answer"] = self.loop.call_later(WRITE_SECONDS, self._check_progress)

    def _limit_unsent(self) -> None:
        """Close the connections that have waited longest for their clients to read."""
        unread = [one for one in self.connections if one.flow.write_paused]
        unread.sort(key=lambda one: one._waiting_since)
        total = sum(one.transport.get_write_buffer_size() for one in unread)
        for one in unread:
            if total <= MAX_UNSENT_BYTES:
                break
            total -= one.transport.get_write_buffer_size()
            one.transport.abort()
