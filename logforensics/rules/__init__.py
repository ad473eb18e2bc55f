"""Rules: what a maintainer would say of a run. The door of this room: :func:`all_rules`, :class:`Case` and :class:`Release`."""

from __future__ import annotations

from logforensics.rules.case import Case, Config, Release
from logforensics.rules.registry import Rule, all_rules

__all__ = ["Case", "Config", "Release", "Rule", "all_rules"]
