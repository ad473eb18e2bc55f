"""Facts in lines that no frame has a column for: pools of one model family, and figures that people restate in a thread.

They count only where the log lacks the line SGLang prints for the purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logforensics import lazy_re
from logforensics.comparison.model import Measured, Setting
from logforensics.run.model import Notice

_NUMBER = r"(?P<value>\d+(?:\.\d+)?)"
# what is printed -> the figure it is; the first that fits a line's piece counts
_FIGURES = tuple(
    (lazy_re.compile(expression.replace("N", _NUMBER)), key)
    for expression, key in (
        (r"\bmax_total_num_tokens=N", "kv_tokens"),
        (r"\bmax_running_requests=N", "max_running_requests"),
        (r"\bcontext_len=N", "context_len"),
        (r"\bmax_mamba_cache_size=N", "mamba_slots"),
        (r"\bpool sizes: full=N", "full_pool_tokens"),
        (r"\bpool sizes: .*\bswa=N", "swa_pool_tokens"),
        (r"\bprefix_tails=N", "swa_prefix_tails"),
        (r"\bmamba cache: N slots", "mamba_slots"),
        (r"\bKV pool: N tokens", "kv_tokens"),
        (r"\bKV pool: \d+ tokens \(N GB\)", "kv_gib"),
        (r"\bweights loaded, [^:]*: N GB", "weights_gib"),
    )
)
_SETTINGS = (
    (lazy_re.compile(r"\bmem_fraction_static=(?P<value>0?\.\d+)"), "mem_fraction_static"),
    (lazy_re.compile(r"\bswa_full_tokens_ratio=(?P<value>\d*\.\d+)"), "swa_full_tokens_ratio"),
    (lazy_re.compile(r"\bSWA sizing: mode=(?P<value>[a-z]+)"), "swa_sizing"),
)
_SHORT = 400


def figures(notices: Iterable[Notice]) -> dict[str, Measured]:
    """Figures by key, the first line that states one."""
    found: dict[str, Measured] = {}
    for notice in _short(notices):
        for expression, key in _FIGURES:
            if key not in found and (match := expression.search(notice.text)):
                found[key] = Measured(float(match["value"]), notice.mark)
    return found


def settings(notices: Iterable[Notice]) -> dict[str, Setting]:
    """Settings by server_args field, the first line that states one."""
    found: dict[str, Setting] = {}
    for notice in _short(notices):
        for expression, field in _SETTINGS:
            if field not in found and (match := expression.search(notice.text)):
                value = match["value"]
                found[field] = Setting(value if value.isalpha() else float(value), f"stated in line {notice.mark.line}", notice.mark)
    return found


def _short(notices: Iterable[Notice]) -> Iterator[Notice]:
    """Notices that can hold a figure; tracebacks and tables of other programs cannot."""
    return (notice for notice in notices if len(notice.text) <= _SHORT and ("=" in notice.text or ": " in notice.text))
