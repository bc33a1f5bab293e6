"""From a run folder to a listening server: address, key, signals."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from llpauc.errors import InputError
from llpauc.serving.app import Serving, make_app
from llpauc.serving.loaded_run import load_served
from llpauc.serving.page import Beside
from llpauc.serving.protocol import Watched

KEY_VARIABLE = "LLPAUC_API_KEY"
_SHORTEST_KEY = 16
_MOST_KEY_BYTES = 1024
_LAST_SECONDS = 10  # for the requests under way when the server is told to stop


def serve_run(
    run: str,
    host: str,
    port: int,
    key_file: str | None,
    log: Callable[[str], None],
    beside: Beside | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; SIGHUP reloads the run folder.

    The port is taken before the run is loaded: one that is in use is told at once.
    """
    key = read_key(key_file)
    with listen(host, port, key) as listener:
        serving = Serving(Path(run), load_served(Path(run)), log)
        asyncio.run(_serve(serving, key, listener, beside))


def read_key(key_file: str | None) -> str | None:
    """The API key from the file, else from the environment; None where there is none."""
    if key_file is None:
        key, source = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
        if key is None:
            return None
    else:
        source = key_file
        try:
            with open(key_file, "rb") as file:
                key = file.read(_MOST_KEY_BYTES + 1).decode("ascii").strip()
        except OSError as error:
            raise InputError(f"{key_file}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"{key_file}: a key is plain ASCII text") from None
    if not _SHORTEST_KEY <= len(key) <= _MOST_KEY_BYTES:
        raise InputError(
            f"{source}: the key has {len(key)} characters; from {_SHORTEST_KEY} to"
            f" {_MOST_KEY_BYTES} are wanted"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{source}: a key is printable ASCII without spaces")
    return key


def listen(host: str, port: int, key: str | None) -> socket.socket:
    """A listening socket; any but a loopback address wants a key."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"host {host!r} is no address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    if key is None and not ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback:
        raise InputError(
            f"{host} can be reached from elsewhere, so an API key is wanted: set {KEY_VARIABLE} or"
            " give --api-key-file"
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


async def _serve(
    serving: Serving, key: str | None, listener: socket.socket, beside: Beside | None
) -> None:
    config = uvicorn.Config(
        make_app(serving, key, beside),
        http=Watched,
        lifespan="on",
        ws="none",
        access_log=False,  # paths hold user ids
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    tasks: set[asyncio.Task[None]] = set()  # asyncio itself holds them weakly

    def reload_soon() -> None:
        task = asyncio.create_task(_reload(serving))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_soon)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    serving.log(f"serving run {serving.served.run} on http://{shown}:{port}; Ctrl-C stops")
    await uvicorn.Server(config).serve([listener])


async def _reload(serving: Serving) -> None:
    try:
        served, changed = await serving.reload()
        serving.log(f"{'now serving' if changed else 'still'} run {served.run}")
    except InputError as error:
        serving.log(f"reload refused: {error}; run {serving.served.run} answers on")
