"""``logforensics patterns``: tools for those who keep the pattern packs up with SGLang's releases."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logforensics.cli import options

if TYPE_CHECKING:
    from logforensics.parsing.audit import Audit, Checked

NAME = "patterns"

app = typer.Typer(
    name=NAME,
    help="Do the patterns still read what SGLang logs? For maintainers, and for whoever wonders about an unknown line.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

Package = Annotated[Path, typer.Argument(metavar="WHEEL_OR_DIR", help="A wheel of SGLang, or a folder that holds its source.")]
Since = Annotated[Path | None, typer.Option("--since", metavar="WHEEL_OR_DIR", help="An earlier release: show what is new or changed.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many templates.")]


@app.command(
    "unknown", epilog=options.examples("logforensics patterns unknown server.log", "logforensics patterns unknown logs/ --limit 50")
)
def unknown(log: options.Logs, *, limit: Limit = 20, no_progress: options.NoProgress = False) -> int:
    """List the lines no pattern knows, by template.

    Most frequent first, with <*> for what varies and the line of the first one.
    """
    from logforensics.cli.output import emit
    from logforensics.cli.waiting import waiting
    from logforensics.parsing.audit import unknown_templates
    from logforensics.render.words import plural

    with waiting(wanted=not no_progress):
        groups = unknown_templates(log)
    lines = [f"{group.count:>8}  {group.template}\n          first at {group.source}:{group.line}" for group in groups[:limit]]
    total = sum(group.count for group in groups)
    lines.append(f"{plural(total, 'unknown line')} in {plural(len(groups), 'template')}")
    emit("\n".join(lines) + "\n")
    return 0


@app.command(
    "audit",
    epilog=options.examples(
        "logforensics patterns audit sglang-0.5.23-py3-none-any.whl",
        "logforensics patterns audit sglang-0.5.23.whl --since sglang-0.5.16.whl",
    ),
)
def audit(package: Package, *, since: Since = None) -> int:
    """Compare the patterns with the messages in a release of SGLang.

    Its source is read, never run. Exit status 1 where a message of a family we read is not recognised.
    """
    from logforensics.cli.output import emit
    from logforensics.parsing.audit import audit as compare

    found = compare(package, since=since)
    lines = [
        f"{item.family:<12} {_state(item):<18} {item.template.shape!r}\n{'':12} {item.template.where}:{item.template.line}"
        for item in _shown(found)
    ]
    lines += [f"{'gone':<31} {template.shape!r}" for template in found.gone]
    lines.append(
        f"{len(found.checked)} messages of the families we read, {len(found.checked) - len(found.gaps)} recognised, {len(found.gaps)} not"
    )
    emit("\n".join(lines) + "\n")
    return 1 if found.gaps else 0


def _shown(found: "Audit") -> list["Checked"]:
    return [item for item in found.checked if item.change != "same" or not item.is_read or item.lost]


def _state(item: "Checked") -> str:
    change = "" if item.change == "same" else f"{item.change}, "
    if not item.is_read:
        return change + "NOT RECOGNISED"
    return change + (f"recognised, but for {', '.join(item.lost)}" if item.lost else "recognised")
