"""Limits on the memory of this process (ulimit -v, prlimit --as): told in bytes, before the work.

Libraries that get no memory end the process, or wait for ever; so they are not asked to try.
"""

from __future__ import annotations

from pathlib import Path

from llpauc.errors import InputError

_LIBRARIES = 1300 << 20  # addresses taken once torch, Numba, Arrow and DuckDB are loaded
_TO_LOAD = 2.5  # bytes of memory for a byte of a run: as it is read, as arrays, in BLAS's order


def check_limit() -> None:
    """Refuse a limit that the program itself does not fit in; to be asked before it is loaded."""
    try:
        import resource
    except ImportError:  # no such limits here
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    if limit < _LIBRARIES:
        raise InputError(
            f"the program alone takes {_LIBRARIES:,} bytes, the limit on this process's memory"
            f" leaves {limit:,}; raise it (ulimit -v)"
        )
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own takes a gigabyte of addresses at once


def check_room(run: str) -> None:
    """Refuse a run that a limit on memory cannot hold."""
    from llpauc.evaluation.ranking import THREAD_BYTES, available_address_space

    room = available_address_space()
    if room is None or not Path(run).is_dir():
        return
    size = sum(file.stat().st_size for file in Path(run).iterdir() if file.is_file())
    needed = int(_TO_LOAD * size) + THREAD_BYTES
    if needed > room:
        raise InputError(
            f"{run}: to load and rank takes {needed:,} bytes, the limit on this process's memory"
            f" leaves {room:,}; raise it (ulimit -v)"
        )
