"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# CI judges a change, so it draws the same examples every time; at home each run draws its own.
settings.register_profile("ci", derandomize=True)
if os.environ.get("LLPAUC_CI"):
    settings.load_profile("ci")
