"""What must be done before the libraries load: threads, compiled kernels, standard streams.

`import llpauc` calls `prepare`; the command line calls `protect_streams`.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

_forked_with_threads = False


def prepare() -> None:
    """Let waiting threads sleep, and choose a folder for compiled kernels if Numba finds none.

    Threads of OpenMP that spin while they wait take the cores from other processes. Libraries that
    are loaded already keep their settings.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.register_at_fork(after_in_child=_after_fork)
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if _writable(Path(__file__).parent / "__pycache__") or _writable(Path(home)):
        return  # Numba's own choices
    folder = _private_folder()
    if folder is not None:
        os.environ["NUMBA_CACHE_DIR"] = folder
        if "numba" in sys.modules:
            sys.modules["numba"].config.reload_config()


def _after_fork() -> None:
    """Threads do not survive a fork, and GNU OpenMP waits for them."""
    global _forked_with_threads
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    _forked_with_threads |= getattr(parallel, "_threading_layer", None) == "omp"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def forked_with_threads() -> bool:
    """Whether this process was forked from one that had run parallel kernels."""
    return _forked_with_threads


def _writable(folder: Path) -> bool:
    """Whether the folder can be written to, or created. "~" stays relative without a HOME."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return folder.is_absolute() and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _private_folder() -> str | None:
    """A folder that only this user can write to: cached kernels are executed."""
    bases = ["/dev/shm"]
    with suppress(OSError):
        bases.insert(0, tempfile.gettempdir())
    for base in bases:
        folder = os.path.join(base, f"llpauc-{os.getuid()}")
        with suppress(OSError):
            if not os.path.lexists(folder):
                os.mkdir(folder, 0o700)
            status = os.lstat(folder)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and mode == 0o700:
                return folder
            return tempfile.mkdtemp(prefix="llpauc-", dir=base)
    return None


class LossyFile(io.FileIO):
    """A file descriptor whose write errors are recorded, not raised: work does not depend on them.

    After an error nothing more is written.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self.error is not None:
            return size
        try:
            while (written := super().write(data)) is None:  # the descriptor does not block
                select.select([], [self], [])
            return written
        except OSError as error:
            self.error = error
            return size


def protect_streams() -> LossyFile:
    """Replace standard output and standard error by lossy files; returns standard output.

    A closed stream becomes /dev/null, so that no data file is opened under its number.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    files = [LossyFile(number, "w", closefd=False) for number in (1, 2)]
    for name, file in zip(("stdout", "stderr"), files, strict=True):
        text = io.TextIOWrapper(
            io.BufferedWriter(file),
            encoding=getattr(getattr(sys, name), "encoding", "utf-8"),
            errors="backslashreplace",  # a character that the terminal cannot show is escaped
            line_buffering=name == "stderr" or file.isatty(),
        )
        setattr(sys, name, text)
    return files[0]
