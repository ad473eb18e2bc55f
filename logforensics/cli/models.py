"""``logforensics models [NAME]``: the bundled facts of model architectures."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from typing import Annotated, Any

import typer

from logforensics.cli import options
from logforensics.cli.listing import ListFormat, as_json, sheet, table

EPILOG = options.examples("logforensics models", "logforensics models Kimi-K2.5", "logforensics models /data/Qwen3-32B-AWQ --format json")
_COLUMNS = ("model", "attention", "layers", "kv heads", "parameters (billion)", "confidence")

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="A hub id, a path or a quantised copy's name; without it all are listed.")]
Format = Annotated[ListFormat, typer.Option("--format", help="Form of the output.")]


def run(name: Name = None, *, format: Format = ListFormat.TEXT) -> int:  # noqa: A002 (the option's name)
    """Show what is known of model architectures.

    The facts that KV memory follows from, each with its source and how sure it is.
    """
    from dataclasses import asdict

    from logforensics.cli.output import emit
    from logforensics.errors import InputError
    from logforensics.models import all_models, find_model

    if name is None:
        rows = [_row(model) for model in all_models()]
        emit(as_json(rows) if format is ListFormat.JSON else table(rows, _COLUMNS))
        return 0
    model = find_model(name)
    if model is None:
        raise InputError(
            f"no bundled model is called {name!r}; `logforensics models` lists them, --model-config takes any other's config.json"
        )
    emit(as_json(asdict(model)) if format is ListFormat.JSON else sheet(_facts(model)))
    return 0


def _row(model: Any) -> dict[str, Any]:
    return {
        "model": model.id,
        "attention": model.layout,
        "layers": model.num_layers,
        "kv heads": model.kv_heads,
        "parameters (billion)": model.parameters_b,
        "confidence": model.confidence,
    }


def _facts(model: Any) -> dict[str, Any]:
    """The facts with their units, and bytes of KV per token computed from them."""
    from logforensics.sglang.flags import releases
    from logforensics.sglang.kv import KvSetting, kv_bytes

    newest = releases()[-1]
    kv = kv_bytes(model, KvSetting(release=newest))
    layers = model.layers
    return {
        **_row(model),
        "classes": model.architectures,
        "layers by kind": ", ".join(
            f"{count} {kind}" for kind, count in (("full", layers.full), ("sliding", layers.sliding), ("linear", layers.linear)) if count
        ),
        "head dimensions": f"K {model.head_dim}, V {model.v_head_dim}" if model.head_dim else None,
        "latent row": f"{model.kv_lora_rank} + {model.rope_dim} elements" if model.kv_lora_rank else None,
        f"KV bytes per token (16 bits, one rank, {newest})": f"{kv.sized:,.0f}" if kv else None,
        "longest context": f"{model.max_positions:,} tokens" if model.max_positions else None,
        "weights in logs": [
            f"{item.checkpoint}: {item.gib_per_rank:g} GiB per rank at TP {item.tp} ({item.device})" for item in model.weights[:6]
        ],
        "logs that agree": model.verified_logs or None,
        "other names": model.aliases,
        "sources": model.sources,
        "notes": model.notes,
    }
