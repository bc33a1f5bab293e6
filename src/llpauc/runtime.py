"""Settings of Numba, made before it is loaded: `import llpauc` calls `prepare`."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path


def prepare() -> None:
    """Choose a folder for compiled kernels where Numba would find none."""
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
