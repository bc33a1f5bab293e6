"""Results on disk: one small file a cell, whole or not at all, and checked when read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from llpauc.research.cells import Cell, Result, digest
from llpauc.storage.atomic import atomic_write


@dataclass(frozen=True)
class Store:
    """The cells of a results folder.

    A file's name is the digest of what was run: the cell, the data's own digest and the version
    of the library; other data or another version are other cells. Inside stands a digest of the
    contents, so that a broken or edited file is found, and run again.

    Args:
        folder: where the files lie.
        data: data set name -> digest of its events.
    """

    folder: Path
    data: Mapping[str, str]

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{digest(self._asked(cell))[:24]}.json"

    def _asked(self, cell: Cell) -> Result:
        return {**cell.spec, "events": self.data[cell.data], "version": version("llpauc")}

    def get(self, cell: Cell) -> Result | None:
        """The result of a cell; None where there is none, or none that can be trusted."""
        try:
            held = json.loads(self.path(cell).read_text(encoding="utf-8"))
            result: Result = held["result"]
            asked = self._asked(cell)
            whole = held["asked"] == asked and held["sha256"] == digest(
                {"asked": asked, "result": result}
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        return result if whole else None

    def broken(self, cell: Cell) -> bool:
        """Whether there is a file for the cell that cannot be trusted."""
        return self.path(cell).exists() and self.get(cell) is None

    def put(self, cell: Cell, result: Result) -> None:
        asked = self._asked(cell)
        whole = {"asked": asked, "result": result}
        text = json.dumps({**whole, "sha256": digest(whole)}, indent=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path(cell)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
