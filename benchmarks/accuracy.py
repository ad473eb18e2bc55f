"""How right the diagnosis is: scores by root cause, the cases it gets wrong, findings on unlabelled logs, predicted KV tokens.

    python benchmarks/accuracy.py [--shared ../shared]

Writes docs/accuracy.md. Needs the labelled incidents and logs, which are not part of the project.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from logforensics import toml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
READ = ROOT / "benchmarks" / "accuracy_read.toml"
MEASURES = ("top1", "accepted", "found", "fix", "cited")


def scores(shared: Path, folder: str) -> dict[str, Any]:
    """The harness's own answer for a folder of labels."""
    command = [sys.executable, str(shared / "tools/score.py"), "--dir", str(shared / folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def by_cause(rows: list[dict[str, Any]]) -> list[str]:
    """A row per root cause: how many cases, and how many of them right in each measure."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["root_cause"]].append(row)
    lines = [f"| root cause | cases | {' | '.join(MEASURES)} |", f"|---|---:|{'---:|' * len(MEASURES)}"]
    for cause, found in sorted(groups.items()):
        cells = []
        for measure in MEASURES:
            asked = [row for row in found if measure != "fix" or row["has_fix"]]
            cells.append(f"{sum(bool(row[measure]) for row in asked)}/{len(asked)}" if asked else "–")
        if cause == "healthy":
            cells = [f"quiet {sum(row['quiet'] for row in found)}/{len(found)}", *["–"] * (len(MEASURES) - 2), cells[-1]]
        lines.append(f"| `{cause}` | {len(found)} | {' | '.join(cells)} |")
    return lines


def wrong(rows: list[dict[str, Any]], reasons: dict[str, str]) -> list[str]:
    """The cases that miss a measure, with the reason where somebody wrote one down."""
    lines = []
    for row in rows:
        keys = ("quiet", "cited") if row["healthy"] else ("answered", *MEASURES)
        missed = [key for key in keys if not row[key] and (key != "fix" or row["has_fix"])]
        if missed:
            lines.append(
                f"- {row['id']} (`{row['root_cause']}`): misses {', '.join(missed)}. {reasons.get(row['id'], 'Reason not yet known.')}"
            )
    return lines or ["None."]


def unlabelled(shared: Path, read: dict[str, Any]) -> list[str]:
    """Every finding at error or above on the logs without a label, and whether it was judged right."""
    from logforensics import diagnose

    labelled = {json.loads(path.read_text())["log"] for path in (shared / "labels").glob("r*.json")}
    logs = [path for path in sorted((shared / "real").glob("*.log.gz")) if path.name not in labelled]
    lines = ["| log | finding | first cited line | read |", "|---|---|---|---|"]
    judged: dict[str, str] = read.get("real", {})
    for path in logs:
        for finding in diagnose(path).findings:
            if finding.severity.value in ("critical", "error"):
                name = path.name.split("-")[0]
                verdict = judged.get(f"{name} {finding.code}", "not read yet")
                lines.append(
                    f"| {name} | {finding.code} `{finding.root_cause}` ({finding.severity.value}) | {finding.evidence[0].line} | {verdict} |"
                )
    return [f"{len(logs)} whole real logs have no label. {len(lines) - 2} findings at error or above:", "", *lines]


def kv_tokens(shared: Path) -> list[str]:
    """Predicted against logged KV tokens, from the module that computes them."""
    command = [sys.executable, "-m", "logforensics.sglang.accuracy", "--real", str(shared / "real")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def page(shared: Path) -> str:
    """The whole page."""
    read = toml.loads(READ.read_text(encoding="utf-8"))
    incidents, labels = scores(shared, "incidents"), scores(shared, "labels")
    lines = [
        "# Accuracy",
        "",
        "Written by `python benchmarks/accuracy.py`; the measures are those of its harness: top1 = the first finding at warning or above",
        "",
    ]
    lines[-1:] = [
        "names the labelled root cause, accepted = it or an equally right one, found = it is among the findings, fix = a recommendation names a",
        "",
    ]
    lines[-1:] = [
        "labelled flag with a fitting value, cited = every cited text stands on its line, quiet = nothing at error or above on a healthy log.",
        "",
    ]
    for title, answer in (("Reconstructed incidents", incidents), ("Whole real logs with labels made by hand", labels)):
        total = ", ".join(f"{key} {value}" for key, value in answer["total"].items())
        lines += [f"## {title}", "", total + ".", "", *by_cause(answer["rows"]), "", "What it gets wrong:", ""]
        lines += [*wrong(answer["rows"], read.get("reasons", {})), ""]
    lines += ["## Whole real logs without a label", "", *unlabelled(shared, read), ""]
    lines += ["## Predicted against logged KV tokens", "", *kv_tokens(shared), ""]
    return "\n".join(lines)


def main() -> int:
    """Write docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    options = parser.parse_args()
    if not (options.shared / "tools/score.py").is_file():
        print(f"{options.shared}: the labelled cases are not here", file=sys.stderr)
        return 2
    PAGE.write_text(page(options.shared), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
