"""Rebuild ``data/models.json`` and ``data/gpus.json``, the compact facts that this package reads.

Run it when the reference files change, from the root of the repository::

    python -m logforensics.models.maintain --reference ../shared/reference

Kept are the facts that a formula or a page needs, with their sources and confidence, one record a line, empty values left out. Bytes
per token are left out: ``logforensics.sglang.kv`` computes them, and a test compares them with the reference.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DATA = Path(__file__).parent / "data"

_MODEL_FIELDS = {
    "id": "id",
    "aliases": "aliases",
    "architectures": "architectures",
    "num_hidden_layers": "num_layers",
    "kv_layers": "kv_layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "v_head_dim": "v_head_dim",
    "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "rope_dim",
    "index_head_dim": "index_dim",
    "num_indexer_layers": "index_layers",
    "index_kpool": "index_pool",
    "swa_num_key_value_heads": "sliding_kv_heads",
    "swa_head_dim": "sliding_head_dim",
    "swa_v_head_dim": "sliding_v_head_dim",
    "sliding_window": "window",
    "num_nextn_predict_layers": "draft_layers",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
    "torch_dtype": "dtype",
    "quantization_config": "quantization",
    "num_parameters_b": "parameters_b",
    "confidence": "confidence",
    "source": "sources",
    "notes": "notes",
}
_LAYOUTS = {"mla": "latent", "dsa": "latent", "kda-mla": "latent", "dsv4": "compressed", "unknown": "unknown"}
_GPU_FIELDS = {
    "id": "id",
    "vendor": "vendor",
    "names": "names",
    "memory_mib": "memory_mib",
    "nominal_gb": "nominal_gb",
    "compute_capability": "compute_capability",
    "unified_memory": "unified",
    "fp8": "fp8",
    "fp4": "fp4",
    "torch_total_gib": "torch_total_gib",
    "confidence": "confidence",
    "source": "sources",
    "notes": "notes",
}


def model_record(fact: Mapping[str, Any]) -> dict[str, Any]:
    """The compact record of one model of the reference."""
    record = {ours: fact[theirs] for theirs, ours in _MODEL_FIELDS.items()}
    record["layout"] = _LAYOUTS.get(fact["kv_rule"], "heads")
    record["layers"] = {kind: n for kind, n in (fact["layer_types"] or {"full": fact["num_hidden_layers"]}).items() if n or kind == "full"}
    record["recurrent"] = _recurrent(fact["linear_attn"])
    record["index_bytes"] = _index_bytes(fact)
    record["compress_ratios"] = sorted([int(ratio), layers] for ratio, layers in (fact["compress_ratios"] or {}).items())
    record["weights"] = [_weights(entry) for entry in fact["weights_logged"]]
    record["verified_logs"] = sum(entry["logs"] for entry in fact["verified_by_log"])
    return _compact(record)


def gpu_record(fact: Mapping[str, Any]) -> dict[str, Any]:
    """The compact record of one accelerator of the reference."""
    record = {ours: fact[theirs] for theirs, ours in _GPU_FIELDS.items()}
    record["other_mib"] = sorted(fact["memory_mib_variants"].values())
    record["free_gib"] = [[entry["gib"], entry["when"]] for entry in fact["free_gib_before_load"]]
    return _compact(record)


def _recurrent(fact: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if fact is None:
        return None
    if fact["type"] == "mamba2":
        sizes = (fact["num_heads"], fact["head_dim"], fact["n_groups"], fact["state_size"])
    else:
        sizes = (fact["num_v_heads"], fact["v_head_dim"], fact["num_k_heads"], fact["k_head_dim"])
    heads, head_dim, groups, state_size = sizes
    kernel = fact["conv_kernel"] or 0
    return {"kind": fact["type"], "heads": heads, "head_dim": head_dim, "groups": groups, "state_size": state_size, "conv_kernel": kernel}


def _index_bytes(fact: Mapping[str, Any]) -> int | None:
    """Index bytes per token over all layers, 2 bytes an element: one key per group of tokens (QSA) or per sparse layer (MiniMax)."""
    sparse = fact["sparse_index"]
    if sparse is None:
        return None
    if "compress_ratio" in sparse:
        per_layer: int = sparse["kv_heads"] * sparse["index_dim"] * 2 // sparse["compress_ratio"]
        return per_layer * int(fact["kv_layers"])
    rows = (sparse["sparse_layers"] - sparse["k_only_layers"]) * 2 + sparse["k_only_layers"]
    return int(rows * sparse["index_dim"] * 2)


def _weights(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "class_name": entry["type"],
        "checkpoint": entry["checkpoint"],
        "tp": entry["tp"],
        "gib_per_rank": entry["gib_per_rank"],
        "device": entry["device"],
    }


def _compact(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value or (value == 0 and value is not False)}


def write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records as a JSON list, one a line."""
    lines = (json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the reference and write both files."""
    parser = argparse.ArgumentParser(description="rebuild the bundled facts of models and accelerators")
    parser.add_argument("--reference", type=Path, required=True, help="folder with models.json and gpus.json")
    parser.add_argument("--target", type=Path, default=DATA, help="where to write")
    given = parser.parse_args(arguments)
    for name, compact in (("models.json", model_record), ("gpus.json", gpu_record)):
        facts = json.loads((given.reference / name).read_text(encoding="utf-8"))
        write(given.target / name, (compact(fact) for fact in facts))


if __name__ == "__main__":
    main()
