"""The HTML page: one file, its own style and script in it, nothing fetched from elsewhere.

Only the style and the script with the right SHA-256 run (Content-Security-Policy), so that an id
or a title that is a piece of HTML stays text even if the script made a mistake.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any


def render(data: dict[str, Any] | None = None) -> bytes:
    """The page as UTF-8.

    Args:
        data: of `report.report_data`; None for the page of a server, which asks it for data.
    """
    style, script = _part("page.css"), _part("page.js")
    page = Template(_part("page.html")).substitute(
        policy=policy(served=data is None), style=style, script=script, data=_embedded(data)
    )
    # Half a surrogate pair has no UTF-8; as \udXXX it is JSON again, and it is nowhere else.
    return page.encode("utf-8", "backslashreplace")


def policy(*, served: bool) -> str:
    """The Content-Security-Policy of the page, with the hashes of its style and script."""
    connect = "connect-src 'self'; " if served else ""
    return (
        f"default-src 'none'; script-src {_hash('page.js')}; style-src {_hash('page.css')}; "
        f"img-src data:; {connect}base-uri 'none'; form-action 'none'"
    )


def _embedded(data: dict[str, Any] | None) -> str:
    """JSON in which no character can end a script element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _part(name: str) -> str:
    return files("llpauc.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(name: str) -> str:
    digest = hashlib.sha256(_part(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
