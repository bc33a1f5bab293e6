"""Runs pages and `llpauc` commands in forks of one process that has imported everything.

Importing torch and other libraries takes some seconds, and the pages have a hundred commands. One
process imports them before any thread starts, and forks for each page and each command. `llpauc` on
the PATH of the pages is a small client that sends the command to this process, with its working
folder, environment, standard streams and signals.

    python -m tests.system.doc_runner SOCKET
"""

from __future__ import annotations

import doctest
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.system.doc_blocks import Block, blocks

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({socket_path!r})
request = {{"words": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(link, [json.dumps(request).encode()], [0, 1, 2])
worker = int(link.recv(64))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(worker, number))
sys.exit(int(link.recv(64)))
"""


def serve(socket_path: str) -> None:
    """Accept requests until the process is ended."""
    import_everything()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(socket_path)
    listening.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the children are not waited for
    while True:
        link, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _handle(link)
        link.close()


def import_everything() -> None:
    import fastapi  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import optuna  # noqa: F401
    import uvicorn  # noqa: F401

    import llpauc.recommend.recommender
    import llpauc.report.page_data
    import llpauc.research.plots
    import llpauc.search.auto_search
    import llpauc.search.tuning
    import llpauc.serving.server  # noqa: F401


def _handle(link: socket.socket) -> None:
    """Fork again: the child runs the request, the parent sends its exit code."""
    message, streams, _, _ = socket.recv_fds(link, 1 << 20, 3)
    worker = os.fork()
    if worker == 0:
        link.close()
        request = json.loads(message)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        # The streams of the parent may be files; these may be pipes, which cannot seek.
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        os._exit(_run_request(request))
    link.send(str(worker).encode())
    _, status = os.waitpid(worker, 0)
    link.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def _run_request(request: dict[str, Any]) -> int:
    try:
        if "page" in request:
            run_page(Path(request["page"]))
            code: Any = 0
        elif "script" in request:
            sys.argv = [request["script"]]
            runpy.run_path(request["script"], run_name="__main__")
            code = 0
        else:
            from llpauc.cli import main

            sys.argv = ["llpauc", *request["words"]]
            code = main(request["words"])
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def send_request(socket_path: str, **request: Any) -> tuple[int, str]:
    """Run a page or a script in a fork; return its exit code and output."""
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(socket_path)
        socket.send_fds(link, [json.dumps(request).encode()], [0, writing, writing])
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as stream:
            output = stream.read()
        link.recv(64)
        return int(link.recv(64)), output


# --- a page --------------------------------------------------------------------------------------


class Page:
    """A page that is being run: one module for its Python blocks, one port for its servers."""

    def __init__(self) -> None:
        module = ModuleType("page")  # dataclasses look up the module of a class
        sys.modules["page"] = module
        self.names: dict[str, Any] = vars(module)
        self.servers: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])

    def run(self, block: Block) -> None:
        if block.kind == "python":
            self._python(block)
        else:
            self._bash(block)

    def _python(self, block: Block) -> None:
        code = re.sub(r"(localhost|127\.0\.0\.1):8000", rf"\1:{self.port}", block.code)
        if not code.lstrip().startswith(">>>"):
            # Blank lines first, so that a traceback names the line of the page.
            text = "\n" * (block.line - 1) + code
            exec(compile(text, str(block.page), "exec", dont_inherit=True), self.names)
            return
        test = doctest.DocTestParser().get_doctest(
            code + "\n", self.names, block.where, str(block.page), block.line - 1
        )
        # doctest works on a copy of the names and clears it; later blocks need them.
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(test, clear_globs=False)
        self.names.update(test.globs)
        if not runner.tries or runner.failures:
            raise AssertionError(f"{block.where}: the output differs from the page")

    def _bash(self, block: Block) -> None:
        code = re.sub(r"(localhost|127\.0\.0\.1):8000", rf"\1:{self.port}", block.code)
        if block.background:
            code = re.sub(r"(llpauc serve [^#\n]*)", rf"\1 --port {self.port}  ", code)
            # `exec` replaces the shell, so that `terminate` reaches the server.
            self.servers.append(subprocess.Popen(["bash", "-c", f"exec {code}"]))
            self._wait_for_server()
            return
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", code], timeout=300)
        if result.returncode:
            raise AssertionError(f"{block.where}: exit code {result.returncode}\n{code}")

    def _wait_for_server(self) -> None:
        for _ in range(600):
            if self.servers[-1].poll() is not None:
                raise AssertionError("the server has exited")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise AssertionError("the server does not answer within a minute")

    def close(self) -> None:
        for server in self.servers:
            server.terminate()
            server.wait(60)


def run_page(path: Path) -> None:
    """Run the blocks of a page in order, in this process."""
    page = Page()
    try:
        for block in blocks(path):
            if block.kind in ("python", "bash") and block.skip_reason is None:
                start = time.perf_counter()
                print(f"--- {block.where}", flush=True)
                page.run(block)
                print(f"--- {time.perf_counter() - start:.1f} s", flush=True)
    finally:
        page.close()


if __name__ == "__main__":
    serve(sys.argv[1])
