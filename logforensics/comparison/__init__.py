"""Two or more runs side by side.

The door of this room: :func:`compare` and the classes of its answer.
"""

from __future__ import annotations

from logforensics.comparison.build import compare
from logforensics.comparison.model import SCHEMA, Comparison, Difference, EqualLoad, Figure, LoadPoint, Outcome, Pair, Side, Verdict

__all__ = ["SCHEMA", "Comparison", "Difference", "EqualLoad", "Figure", "LoadPoint", "Outcome", "Pair", "Side", "Verdict", "compare"]
