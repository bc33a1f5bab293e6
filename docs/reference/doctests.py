"""For the reference: the examples of a docstring are shown as code, not as quotes."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From a line that begins with >>> to the next empty one.
_EXAMPLE = re.compile(r"^([ ]*)>>> .*?(?=\n[ ]*\n|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", obj.docstring.value
            )
