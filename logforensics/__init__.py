"""Post-mortem and pre-flight diagnosis for SGLang servers, from the log.

The names below are the public API. They are imported when first used, so that ``import logforensics`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logforensics._version import __version__
    from logforensics.comparison import Comparison, compare
    from logforensics.diagnosis import Diagnosis
    from logforensics.engine import diagnose
    from logforensics.errors import LogforensicsError
    from logforensics.findings import Finding
    from logforensics.hardware import Hardware
    from logforensics.parsing import ParsedLog, parse
    from logforensics.preflight import preflight
    from logforensics.progress import Progress
    from logforensics.reporting import report
    from logforensics.watching import watch

__all__ = [
    "Comparison",
    "Diagnosis",
    "Finding",
    "Hardware",
    "LogforensicsError",
    "ParsedLog",
    "Progress",
    "__version__",
    "compare",
    "diagnose",
    "parse",
    "preflight",
    "report",
    "watch",
]

_HOMES = {
    "Comparison": "logforensics.comparison",
    "Diagnosis": "logforensics.diagnosis",
    "Finding": "logforensics.findings",
    "Hardware": "logforensics.hardware",
    "LogforensicsError": "logforensics.errors",
    "ParsedLog": "logforensics.parsing",
    "Progress": "logforensics.progress",
    "__version__": "logforensics._version",
    "compare": "logforensics.comparison",
    "diagnose": "logforensics.engine",
    "parse": "logforensics.parsing",
    "preflight": "logforensics.preflight",
    "report": "logforensics.reporting",
    "watch": "logforensics.watching",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from logforensics.garbage import without_cycle_collection

    with without_cycle_collection():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
