"""Predicted against logged KV tokens over a folder of logs, as a Markdown table.

From the root of the repository::

    python -m logforensics.sglang.accuracy --real ../shared/real

A log counts when it has server_args, the lines around weight loading and a KV pool. Logs whose static share is under 1 GiB are shown
with their uncertainty and left out of the summary: there, memory that moves between two lines is everything.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logforensics.models import find_model
from logforensics.records import record
from logforensics.sglang.prediction import UNCERTAIN_BELOW_GIB, KvPrediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logforensics.run import Run


@record(frozen=True)
class Comparison:
    """One log: what was predicted and what it printed."""

    name: str
    releases: str
    model: str
    logged: int
    prediction: KvPrediction

    @property
    def error(self) -> float:
        """Predicted over logged tokens, less one."""
        return self.prediction.relative_error(self.logged)

    @property
    def bound(self) -> float:
        """What rounding explains, relative to the logged tokens."""
        return self.prediction.bound_tokens / self.logged

    @property
    def counts(self) -> bool:
        """Whether the static share is large enough for the log to count in the summary."""
        return self.prediction.rest_gib >= UNCERTAIN_BELOW_GIB


def _predicted(run: Run) -> tuple[int, KvPrediction] | None:
    from logforensics.run.kv import kv_prediction

    if run.launch is None:
        return None
    model = find_model(str(run.launch.args.get("model_path") or ""))
    return kv_prediction(run, run.launch.args, model, run.launch.version_low, run.launch.version_high)


def comparisons(folder: Path) -> tuple[list[Comparison], list[str]]:
    """Every log of a folder: those that can be compared, and the names of those that lack the lines."""
    from logforensics.parsing import parse
    from logforensics.run import build_run

    found, lacking = [], []
    for path in sorted(p for p in folder.iterdir() if p.name.endswith((".log", ".log.gz"))):
        run = build_run(parse(path))
        result = _predicted(run)
        if result is None or run.launch is None:
            lacking.append(path.name)
            continue
        releases = "–".join(dict.fromkeys(r for r in (run.launch.version_low, run.launch.version_high) if r))
        found.append(Comparison(path.name.removesuffix(".gz").removesuffix(".log"), releases, str(run.launch.args["model_path"]), *result))
    return found, lacking


def table(rows: Iterable[Comparison]) -> list[str]:
    """The rows as a Markdown table, largest error first."""
    lines = ["| log | release | logged | predicted | error | rounding | remark |", "|---|---|---:|---:|---:|---:|---|"]
    for row in sorted(rows, key=lambda r: -abs(r.error)):
        remark = row.prediction.note or ("" if row.counts else f"uncertain: static share {row.prediction.rest_gib:.2f} GiB")
        cells = (row.name, row.releases, f"{row.logged:,}", f"{row.prediction.tokens:,}", f"{row.error:+.3%}", f"±{row.bound:.3%}", remark)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(rows: Sequence[Comparison]) -> str:
    """Median error and the share of logs within 0.1, 0.25 and 1 per cent, of those that count."""
    errors = [abs(row.error) for row in rows if row.counts]
    if not errors:
        return "No log of this folder can be compared."
    within = ", ".join(f"{sum(e <= limit for e in errors) / len(errors):.1%} within {limit:.2%}" for limit in (0.001, 0.0025, 0.01))
    left_out = len(rows) - len(errors)
    return (
        f"{len(errors)} logs: median error {statistics.median(errors):.3%}; {within}. Left out: {left_out} with a static share under 1 GiB."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and its summary; 1 where no log can be compared."""
    parser = argparse.ArgumentParser(description="predicted against logged KV tokens")
    parser.add_argument("--real", type=Path, required=True, help="folder with .log or .log.gz files")
    rows, lacking = comparisons(parser.parse_args(arguments).real)
    text = [*table(rows), "", summary(rows), f"Without the lines to compare: {', '.join(lacking) or 'none'}."]
    sys.stdout.write("\n".join(text) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    raise SystemExit(main())
