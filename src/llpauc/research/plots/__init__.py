"""Pictures, legible at the size of a README. Drawn without a screen, saved whole or not at all."""

from __future__ import annotations

from llpauc.data.plots import compare_models, long_tail
from llpauc.storage.figure_files import KINDS, check_kind, save

__all__ = ["KINDS", "check_kind", "compare_models", "long_tail", "save"]
