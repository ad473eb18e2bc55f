"""How a launch spreads a model over its ranks, as far as KV memory depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping


@record(frozen=True)
class Sharding:
    """Sizes of the parallel groups.

    Attributes:
        tp: tensor-parallel ranks.
        attention_dp: data-parallel groups inside the tensor-parallel ranks; each has KV of its own requests.
        attention_cp: context-parallel groups inside them.
        pp: pipeline stages; each keeps the KV of its layers.
        replicas: whole servers of a plain data-parallel launch.
    """

    tp: int = 1
    attention_dp: int = 1
    attention_cp: int = 1
    pp: int = 1
    replicas: int = 1

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of one attention layer."""
        return max(self.tp // (self.attention_dp * self.attention_cp), 1)


def sharding(args: Mapping[str, Any]) -> Sharding:
    """The sharding of a launch.

    With ``enable_dp_attention``, ``dp_size`` means groups inside the tensor-parallel ranks; from 0.5.22 ``attn_dp_size`` says so itself.

    Args:
        args: server_args, or the typed flags of a command by field name; absent fields count as 1.
    """
    dp, own = positive(args, "dp_size"), positive(args, "attn_dp_size")
    inside = bool(args.get("enable_dp_attention"))
    return Sharding(
        tp=positive(args, "tp_size"),
        attention_dp=max(dp if inside else 1, own),
        attention_cp=positive(args, "attn_cp_size"),
        pp=positive(args, "pp_size"),
        replicas=1 if inside else dp,
    )


def positive(args: Mapping[str, Any], field: str, otherwise: int = 1) -> int:
    """A whole number above 0 among the arguments; ``otherwise`` where the field is absent, unset or not such a number."""
    value = args.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise
