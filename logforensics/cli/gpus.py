"""``logforensics gpus [NAME]``: the bundled facts of accelerators."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from typing import Annotated, Any

import typer

from logforensics.cli import options
from logforensics.cli.listing import ListFormat, as_json, sheet, table

EPILOG = options.examples("logforensics gpus", "logforensics gpus H100", "logforensics gpus 'RTX PRO 6000' --format json")
_COLUMNS = ("gpu", "memory (MiB)", "vendor", "capability", "FP8", "FP4", "confidence")

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="A GPU as people or nvidia-smi call it; without it all are listed.")]
Format = Annotated[ListFormat, typer.Option("--format", help="Form of the output.")]


def run(name: Name = None, *, format: Format = ListFormat.TEXT) -> int:  # noqa: A002 (the option's name)
    """Show what is known of GPUs and other accelerators.

    Memory as the driver prints it, free memory before loading in real logs, number formats; with source and confidence.
    """
    from dataclasses import asdict

    from logforensics.cli.output import emit
    from logforensics.errors import InputError
    from logforensics.models import all_gpus, gpus_named

    found = all_gpus() if name is None else gpus_named(name)
    if not found:
        raise InputError(f"no bundled GPU is called {name!r}; `logforensics gpus` lists them, --gpu-memory takes any other's size")
    if format is ListFormat.JSON:
        emit(as_json([asdict(gpu) for gpu in found]))
    elif name is None or len(found) > 1:
        emit(table([_row(gpu) for gpu in found], _COLUMNS))
    else:
        emit(sheet(_facts(found[0])))
    return 0


def _row(gpu: Any) -> dict[str, Any]:
    return {
        "gpu": gpu.id,
        "memory (MiB)": gpu.memory_mib,
        "vendor": gpu.vendor,
        "capability": gpu.compute_capability,
        "FP8": "yes" if gpu.fp8 else "",
        "FP4": "yes" if gpu.fp4 else "",
        "confidence": gpu.confidence,
    }


def _facts(gpu: Any) -> dict[str, Any]:
    return {
        **_row(gpu),
        "names": gpu.names,
        "totals with ECC switched (MiB)": gpu.other_mib,
        "unified memory": "yes" if gpu.unified else None,
        "free before loading": [f"{gib:g} GiB ({when})" for gib, when in gpu.free_gib],
        "sources": gpu.sources,
        "notes": gpu.notes,
    }
