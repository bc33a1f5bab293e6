"""`llpauc serve`: a saved run behind HTTP."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from llpauc.cli.console import log
from llpauc.cli.memory_limit import check_room

Port = Annotated[int, Ge(0), Le(65535)]


def serve(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: Port = 8000,
    api_key_file: str | None = None,
    items: str | None = None,
    tuning: str | None = None,
    json: bool = False,
) -> None:
    """Answer HTTP requests for lists from a saved run (docs/how-to/serve.md).

    At / there is a page to look at. POST /recommend and /similar-items, GET /users/ID, /healthz,
    /readyz, /metrics, /openapi.json.
    POST /reload, or SIGHUP, takes up the run that lies in the folder then, and no request fails
    meanwhile. Ctrl-C or SIGTERM: what was asked is answered, then the server stops.

    Args:
        run: a run folder written by llpauc train
        host: address to listen on; any but a loopback address wants an API key
        port: port to listen on; 0 for any free one
        api_key_file: file with the key that clients send as X-API-Key (else LLPAUC_API_KEY)
        items: CSV or TSV file with the columns item and title, for the page
        tuning: folder that llpauc tune wrote, for the page
        json: what the server says as JSON, a line each
    """
    from llpauc.errors import InputError
    from llpauc.report.titles import read_titles
    from llpauc.report.tuning import read_tuning

    try:
        from llpauc.serving.page import Beside
        from llpauc.serving.server import serve_run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("llpauc"):
            raise
        raise InputError(
            f"serving needs {error.name}, which is not installed; pip install 'llpauc[serve]'"
        ) from None
    beside = Beside(read_titles(items), read_tuning(tuning))
    check_room(run)
    serve_run(run, host, port, api_key_file, _say_json if json else log.info, beside)


def _say_json(line: str) -> None:
    from json import dumps

    print(dumps({"said": line}), flush=True)
