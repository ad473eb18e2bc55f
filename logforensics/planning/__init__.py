"""A launch before it happens: facts that flags, model and machine decide, and what they will lead to."""

from __future__ import annotations

from logforensics.planning.forecast import Forecast, Outlook, all_forecasts
from logforensics.planning.plan import Plan

__all__ = ["Forecast", "Outlook", "Plan", "all_forecasts"]
