"""`llpauc serve`: a saved run over HTTP."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from typing import Annotated

from annotated_types import Ge, Le

from llpauc.cli.system import check_run_fits_memory

Port = Annotated[int, Ge(0), Le(65535)]


def serve(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: Port = 8000,
    api_key_file: str | None = None,
    require_signature: bool = False,
    key_file: str | None = None,
    items: str | None = None,
    exclude: str | None = None,
    tuning: str | None = None,
    json: bool = False,
) -> None:
    """Serve the lists of a saved run over HTTP, with a web page (docs/how-to/serve.md).

    Routes: / is the page; POST /recommend and /similar-items; GET /users/ID, /healthz, /readyz,
    /metrics and /openapi.json. POST /reload or SIGHUP loads the run that is now in the folder, and
    no request fails meanwhile. Ctrl-C or SIGTERM stops the server after the requests in progress.

    Args:
        run: a run folder written by llpauc train
        host: address to listen on; every address but a loopback address requires an API key
        port: port to listen on; 0 chooses a free one
        api_key_file: file with the key that clients send as X-API-Key (else LLPAUC_API_KEY)
        require_signature: refuse a run that is not signed (llpauc sign), also on a reload
        key_file: file with the key of the signature (else LLPAUC_SIGNING_KEY)
        items: the catalogue, a table with a column of item ids: titles for the page, and columns
            for the condition where of a request; by default that of the run
        exclude: items of a user that are left out of the list: all, none, or those with an event of
            these types; by default as the run was trained
        tuning: folder written by llpauc tune, for the page
        json: print the messages as JSON, one per line
    """
    from llpauc.errors import InputError
    from llpauc.storage.signing import read_signing_key

    if key_file is not None and not require_signature:
        raise InputError("--key-file is the key of a signature; give --require-signature too")
    with _signals_while_loading():
        signing_key = read_signing_key(key_file) if require_signature else None
        _serve(run, host, port, api_key_file, signing_key, items, exclude, tuning, json)


def _serve(
    run: str,
    host: str,
    port: int,
    api_key_file: str | None,
    signing_key: str | None,
    items: str | None,
    exclude: str | None,
    tuning: str | None,
    json: bool,
) -> None:
    from llpauc.errors import InputError

    try:
        from llpauc.serving.server import serve_run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("llpauc"):
            raise
        raise InputError(
            f"serving needs {error.name}, which is not installed; pip install 'llpauc[serve]'"
        ) from None
    from llpauc.data.catalogue import read_catalogue
    from llpauc.report.tuning import read_tuning

    catalogue = None if items is None else read_catalogue(items)
    trials = read_tuning(tuning)
    check_run_fits_memory(run)
    if json:
        logging.getLogger("llpauc").handlers = [_JSONHandler()]
    serve_run(run, host, port, api_key_file, catalogue, trials, signing_key, exclude)


@contextmanager
def _signals_while_loading() -> Iterator[None]:
    """SIGHUP does not end the process; SIGTERM ends it also as process 1 of a container."""
    terminate = signal.signal(signal.SIGTERM, _terminate)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGHUP, hang_up)


def _terminate(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # the kernel ignores it for process 1
    os._exit(128 + number)


class _JSONHandler(logging.Handler):
    """Messages as JSON on standard output, one per line."""

    def emit(self, record: logging.LogRecord) -> None:
        print(dumps({"message": record.getMessage()}), flush=True)
