"""Checksums of files, and of the manifest that lists them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEAL = "sha256"  # the manifest's entry about itself


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of what the manifest says beside its seal, whatever its line breaks."""
    said = {key: value for key, value in manifest.items() if key != SEAL}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode("ascii")).hexdigest()


def is_sealed(manifest: Mapping[str, Any]) -> bool:
    """Whether a manifest is as it was sealed."""
    try:
        return bool(manifest[SEAL] == seal(manifest))
    except (KeyError, RecursionError):  # no seal, or nested as no manifest of ours is
        return False
