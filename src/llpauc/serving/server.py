"""From a run folder to a listening server: address, key, signals."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import signal
import socket
import time
from pathlib import Path
from typing import Any

import uvicorn

from llpauc.data.catalogue import Catalogue
from llpauc.errors import InputError
from llpauc.serving.app import ServingState, make_app
from llpauc.serving.connections import Connection, max_connections
from llpauc.serving.loaded_run import current_run_id
from llpauc.storage.signing import read_key

KEY_VARIABLE = "LLPAUC_API_KEY"
_REPEAT_SECONDS = 10.0
_SHUTDOWN_SECONDS = 10  # for the requests in progress when the server is stopped

logger = logging.getLogger(__name__)


class BriefMessages(logging.Filter):
    """One line without a stack trace, and the same line at most once in ten seconds.

    Clients without a key can cause messages of asyncio and of uvicorn as often as they like.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args, record.exc_info = record.getMessage().split("\n")[0], None, None
        now = time.monotonic()
        if now - self._last.get(record.msg, -math.inf) < _REPEAT_SECONDS:
            return False
        self._last[record.msg] = now
        return True


def serve_run(
    folder: str,
    host: str,
    port: int,
    key_file: str | None,
    catalogue: Catalogue | None,
    tuning: dict[str, Any] | None,
    signing_key: str | None,
    exclude: str | None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; SIGHUP reloads the run folder.

    The port is opened before the run is loaded, so that a port in use is reported at once. For
    catalogue, tuning, signing_key and exclude, see `ServingState`.
    """
    key = read_key(key_file, KEY_VARIABLE)
    with listen(host, port, key) as listener:
        state = ServingState(Path(folder), catalogue, tuning, signing_key, exclude)
        asyncio.run(_serve(state, key, listener))


def listen(host: str, port: int, key: str | None) -> socket.socket:
    """A listening socket; every address but a loopback address requires a key."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"host {host!r} is not an address of this machine: {error}") from None
    family, kind, protocol, _, address = addresses[0]
    if key is None and not ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback:
        raise InputError(
            f"{host} is reachable from other machines, so an API key is required: set"
            f" {KEY_VARIABLE} or give --api-key-file"
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port"
        ) from None
    return listener


async def _serve(state: ServingState, key: str | None, listener: socket.socket) -> None:
    config = uvicorn.Config(
        make_app(state, key),
        http=Connection,
        backlog=max_connections() // 2,  # accepted together, so descriptors must be left for them
        lifespan="on",
        ws="none",
        access_log=False,  # paths contain user ids
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    brief = BriefMessages()
    for name in ("asyncio", "uvicorn.error", "llpauc.serving.limits"):
        logging.getLogger(name).addFilter(brief)
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).handlers = logging.getLogger("llpauc").handlers
    tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references

    def reload_soon() -> None:
        task = asyncio.create_task(_reload(state))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_soon)
        if current_run_id(state.folder) != state.run.run_id:
            reload_soon()  # replaced while it was loaded, when SIGHUP is ignored
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    logger.info("serving run %s on http://%s:%d; Ctrl-C stops", state.run.run_id, name, port)
    await uvicorn.Server(config).serve([listener])


async def _reload(state: ServingState) -> None:
    try:
        run, changed = await state.reload()
        logger.info("%s run %s", "now serving" if changed else "still serving", run.run_id)
    except InputError as error:
        logger.warning("reload refused: %s; run %s is still served", error, state.run.run_id)
