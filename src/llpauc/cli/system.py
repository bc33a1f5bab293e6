"""Checks before the work starts: output paths, memory limits; and the versions for `--version`."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from llpauc.errors import InputError
from llpauc.storage.environment import THREAD_VARIABLES, cores, installed_version
from llpauc.storage.manifest import check_no_manifest

if TYPE_CHECKING:
    from llpauc.recommend.fitted import Fitted

CHECKPOINT = ".checkpoint"  # RUN.checkpoint is the folder of the checkpoints of RUN
_PROBE_BYTES = 4096  # written before the work, to notice a full disk or a quota
_LIBRARY_BYTES = 1300 << 20  # address space of torch, Numba, Arrow and DuckDB
_LOAD_FACTOR = 2.5  # bytes of memory per byte of a run: file, arrays, copy in the order of BLAS
_PACKAGES = ("torch", "numpy", "numba", "scipy", "pyarrow", "duckdb")


def check_file(path: str | None, *inputs: str) -> None:
    """Refuse a file that cannot be written, or that is an input; None is accepted."""
    if path is None:
        return
    _check_inputs(path, inputs)
    if Path(path).is_dir():
        raise InputError(f"cannot write {path}: it is a folder; choose another name")
    check_no_manifest(Path(path))
    _check_writable(path, Path(path).absolute().parent)


def check_folder(path: str, *inputs: str, replaced: bool = True) -> None:
    """Refuse a folder that cannot be written to, that holds an input, or that would break a run.

    Args:
        path: the folder.
        inputs: files and folders that are read.
        replaced: as a whole, so that it may be a run itself; else files are written into it.
    """
    _check_inputs(path, inputs)
    folder = Path(path).absolute()
    check_no_manifest(folder.resolve().parent if replaced else folder)
    _check_writable(path, folder)


def _check_inputs(path: str, inputs: Sequence[str]) -> None:
    target = Path(path).resolve()
    for name in inputs:
        if target in (source := Path(name).resolve(), *source.parents):
            raise InputError(f"cannot write {path}: {name} is read from it; choose another place")


def make_folder_of(path: str) -> None:
    """Create the folder of a file."""
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)


def check_free_space(path: str, needed: int) -> None:
    """Refuse a folder on a disk with fewer free bytes than the result takes at least."""
    existing = _existing(Path(path).absolute())
    disk = shutil.disk_usage(existing)
    if disk.total and disk.free < needed:  # a file system that does not count has a total of 0
        raise InputError(
            f"cannot write {path}: it takes {needed:,} bytes or more, {disk.free:,} bytes are free"
            f" in {existing}; choose another place"
        )


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def _check_writable(path: str, folder: Path) -> None:
    existing = _existing(folder)
    if not existing.is_dir():
        raise InputError(f"cannot write {path}: {existing} is no folder; choose another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(
            f"cannot write {path}: {existing} is read-only for you; choose another place"
        )
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {existing}: {error.strerror}; choose another place"
        ) from None


def check_numba_variables() -> None:
    """Refuse values of the environment variables of Numba that it cannot use."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "1").strip()
    if not threads.isdecimal() or int(threads) < 1:
        raise InputError(f"NUMBA_NUM_THREADS must be a whole number of at least 1, got {threads!r}")
    if "NUMBA_THREADING_LAYER" in os.environ:
        import numba

        try:
            numba.get_num_threads()  # loads the layer
        except ValueError as error:
            layer = os.environ["NUMBA_THREADING_LAYER"]
            reason = str(error).splitlines()[0]
            raise InputError(
                f"NUMBA_THREADING_LAYER={layer} cannot be used: {reason} Unset it, or choose omp"
            ) from None


def check_memory_limit() -> None:
    """Refuse a memory limit (ulimit -v) that is too low for the libraries alone.

    To be called before they are imported: without memory they end the process or hang.
    """
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    if limit < _LIBRARY_BYTES:
        raise InputError(
            f"the program alone takes {_LIBRARY_BYTES:,} bytes, the limit on this process's memory"
            f" leaves {limit:,}; raise it (ulimit -v)"
        )
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's default pool reserves a gigabyte


def check_run_fits_memory(run: str) -> None:
    """Refuse a run that is too large for the memory limit of this process."""
    from llpauc.evaluation.ranking import THREAD_BYTES, available_address_space

    available = available_address_space()
    if available is None or not Path(run).is_dir():
        return
    size = sum(file.stat().st_size for file in Path(run).iterdir() if file.is_file())
    needed = int(_LOAD_FACTOR * size) + THREAD_BYTES
    if needed > available:
        raise InputError(
            f"{run}: to load and rank takes {needed:,} bytes, the limit on this process's memory"
            f" leaves {available:,}; raise it (ulimit -v)"
        )


def load_run(run: str) -> Fitted:
    """Load the model of a run folder."""
    from llpauc.recommend import Recommender

    check_run_fits_memory(run)
    return Recommender.load(run).require_fitted()


def version_text() -> str:
    """The versions of llpauc, Python and the main packages, the system and the threads."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    limits = [f", {name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]
    return "\n".join(
        [
            f"llpauc {version('llpauc')}",
            f"Python {platform.python_version()} on {system}",
            ", ".join(f"{name} {installed_version(name) or 'missing'}" for name in _PACKAGES),
            f"threads: {cores()}{''.join(limits)}",
        ]
    )
