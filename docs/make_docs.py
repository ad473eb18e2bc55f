"""Write the generated pages: frames, findings and the command line. ``--check`` only compares.

python docs/make_docs.py [--check]
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
_DEMO_BEGIN, _DEMO_END = "<!-- demo: written by docs/make_docs.py -->", "<!-- end of demo -->"
COMMANDS = (
    "",
    "diagnose",
    "preflight",
    "whatif",
    "watch",
    "compare",
    "runs",
    "report",
    "collect",
    "frames",
    "sql",
    "export",
    "flags",
    "models",
    "gpus",
    "patterns",
    "demo",
    "explain",
)
_CONSOLE = re.compile(r"(?P<head>```console\n\$ (?P<command>logforensics [^\n]*)\n)(?P<output>.*?)(?P<end>^```$)", re.DOTALL | re.MULTILINE)


_JOINING = [
    "A line is `source` and `line` together, a server start `source` and `launch` together: both count from the beginning of their own file. The frames hold",
    "what each file says, with the times it prints. So join on `(source, launch)`, never on `launch` alone. The nodes of a run are the rows of `launches` with",
    "one `model_path`, `tp_size`, `pp_size`, `dp_size` and `nnodes` and different `node_rank`; `logforensics diagnose` says which files these are",
    "(`run.members`), and how far the clock of each is ahead (`clock.offset_s`, to be taken off `time`).",
    "",
    "```sql",
    "select l.node_rank, m.tp, m.avail_gib from memory m join launches l using (source, launch) where m.stage = 'load_end' order by l.node_rank, m.tp",
    "```",
    "",
]
_DAMAGE = [
    "Processes that write to one pipe cut each other's lines. A frame holds only rows that a process printed: of a torn record it holds none, and the record",
    "that follows it on the same line gives a row where the next line is the rest of the torn one, or where nothing can have been glued to it. A number that",
    "may have lost digits is not read. Every damaged line is counted, and named in `parse(log).coverage.damaged_lines` and in `diagnose --format json`.",
    "",
]


def frames_page() -> str:
    """The frame reference, from the schema."""
    from logforensics.schema import COMMON, FRAMES

    def table(columns: tuple) -> list[str]:  # type: ignore[type-arg]
        rows = [f"| `{c.name}` | {c.dtype} | {c.unit} | {c.meaning} |" for c in columns]
        return ["| column | dtype | unit | meaning |", "|---|---|---|---|", *rows, ""]

    lines = [
        "# Frames",
        "",
        "What `logforensics.parse(log).frames` holds and `logforensics frames` writes. GPU memory is in GiB (2^30 bytes), HiCache host memory in GB (1e9).",
        "",
        "Every frame begins with these columns:",
        "",
        *table(COMMON),
    ]
    lines += [*_JOINING, *_DAMAGE]
    for name, columns in FRAMES.items():
        lines += [f"## {name}", "", *table(columns)]
    return "\n".join(lines)


def finding_pages() -> dict[str, str]:
    """One page per rule and their index, from the rules' docstrings; the stories in fixtures/ that trigger a rule are its examples."""
    from logforensics.rules import all_rules, pages

    stories = _stories()
    out = {"findings/index.md": "# Findings\n\n" + pages.index()}
    for rule in all_rules():
        found = stories.get(rule.root_cause, [])
        examples = [f"- `fixtures/{name}`: {story}" for name, story in found]
        text = pages.page(rule.code)
        out[f"findings/{rule.code}.md"] = text + ("\n## Examples\n\n" + "\n".join(examples) + "\n" if examples else "")
    return out


def _stories() -> dict[str, list[tuple[str, str]]]:
    from logforensics import toml

    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((DOCS.parent / "fixtures").glob("*/expect.toml")):
        expect = toml.loads(path.read_text(encoding="utf-8"))
        found.setdefault(expect["root_cause"], []).append((path.parent.name, expect["story"]))
    return found


def commands_page() -> str:
    """``--help`` of every command."""
    lines = ["# Command line", ""]
    for command in COMMANDS:
        lines += [f"## logforensics {command}".rstrip(), "", "```text", _screen(*command.split(), "--help"), "```", ""]
    return "\n".join(lines)


def _screen(*words: str) -> str:
    """What a command prints in a pipe, 80 columns wide."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "logforensics", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=DOCS.parent)  # noqa: S603
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")


def readme() -> str:
    """README with the screen of `logforensics demo` between its markers."""
    path = DOCS.parent / "README.md"
    before, _, rest = path.read_text(encoding="utf-8").partition(_DEMO_BEGIN)
    _, _, after = rest.partition(_DEMO_END)
    return f"{before}{_DEMO_BEGIN}\n```text\n{_screen('demo')}\n```\n{_DEMO_END}{after}"


def howto_pages() -> dict[str, str]:
    """The tutorial and the how-tos with what their ```console commands print now."""
    found = {}
    for path in (DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        found[path.relative_to(DOCS).as_posix()] = _CONSOLE.sub(
            lambda block: f"{block['head']}{_screen(*shlex.split(block['command'])[1:])}\n{block['end']}", text
        )
    return found


def pages() -> dict[str, str]:
    """Every generated page by its path under docs/."""
    return {"frames.md": frames_page(), "commands.md": commands_page(), **finding_pages(), **howto_pages(), "../README.md": readme()}


def main() -> int:
    """Write the pages, or with ``--check`` name those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 where a page is out of date")
    options = parser.parse_args()
    wanted = pages()
    stale = [path for path, text in wanted.items() if not (DOCS / path).is_file() or (DOCS / path).read_text(encoding="utf-8") != text]
    stale += [f"findings/{path.name}" for path in (DOCS / "findings").glob("*.md") if f"findings/{path.name}" not in wanted]
    if options.check:
        for path in stale:
            print(f"docs/{path} is out of date: run python docs/make_docs.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        target = DOCS / path
        if path not in wanted:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(wanted[path], encoding="utf-8")
    print(f"{len(stale)} of {len(wanted)} pages written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
