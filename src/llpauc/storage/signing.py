"""Keys, and signatures of folders: HMAC-SHA256 of the manifest, which names the SHA-256 of every
file.

A checksum detects damage; a signature also detects changes by anyone who does not have the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from typing import Any

from llpauc.errors import InputError

SIGNATURE = "signature"  # entry of the manifest
SIGNING_KEY_VARIABLE = "LLPAUC_SIGNING_KEY"
_MIN_KEY_BYTES = 16
_MAX_KEY_BYTES = 1024


def read_key(key_file: str | None, variable: str) -> str | None:
    """The key from the file, else from the environment variable; None if there is none."""
    if key_file is None:
        key, source = os.environ.get(variable), variable
        if key is None:
            return None
    else:
        source = key_file
        try:
            with open(key_file, "rb") as file:
                key = file.read(_MAX_KEY_BYTES + 1).decode("ascii").strip()
        except OSError as error:
            raise InputError(f"{key_file}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"{key_file}: the key must be ASCII text") from None
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        raise InputError(
            f"{source}: the key has {len(key)} characters; it must have {_MIN_KEY_BYTES} to"
            f" {_MAX_KEY_BYTES}"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{source}: the key must be printable ASCII without spaces")
    return key


def read_signing_key(key_file: str | None) -> str:
    """The key of signatures; an error if there is none."""
    key = read_key(key_file, SIGNING_KEY_VARIABLE)
    if key is None:
        raise InputError(f"a signature needs a key: give --key-file, or set {SIGNING_KEY_VARIABLE}")
    return key


def signature(manifest: Mapping[str, Any], key: str) -> str:
    """The signature of all entries of a manifest but its checksum and its signature."""
    entries = {name: manifest[name] for name in manifest if name not in ("sha256", SIGNATURE)}
    text = "llpauc signature 1\n" + json.dumps(entries, sort_keys=True)
    return hmac.new(key.encode("ascii"), text.encode("ascii"), hashlib.sha256).hexdigest()


def is_signed(manifest: Mapping[str, Any], key: str) -> bool:
    """Whether the manifest has the signature of this key."""
    found = str(manifest.get(SIGNATURE)).encode("utf-8", "replace")
    return hmac.compare_digest(found, signature(manifest, key).encode("ascii"))
