"""What a rule may look at: the run, the configuration, the release, and the hardware the user told us about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from logforensics.findings import Evidence
from logforensics.hardware import Hardware
from logforensics.records import record
from logforensics.run import Failure, Launch, Mark, Run
from logforensics.run.troubles import Trouble
from logforensics.sglang import flags

if TYPE_CHECKING:
    from logforensics.command import LaunchCommand
    from logforensics.evidence import Side
    from logforensics.models import Model
    from logforensics.sglang.prediction import KvPrediction

_OLDEST, _NEWEST = flags.releases()[0], flags.releases()[-1]


@record(frozen=True)
class Release:
    """The SGLang release as a range; both ends are known releases."""

    low: str
    high: str
    basis: str

    def since(self, release: str) -> bool:
        """Whether the server is certainly ``release`` or later."""
        return flags.release_at_least(self.low, release)

    def before(self, release: str) -> bool:
        """Whether the server is certainly older than ``release``."""
        return not flags.release_at_least(self.high, release)

    def may_be(self, first: str, last: str) -> bool:
        """Whether any release of ``first`` … ``last`` is possible."""
        return flags.release_at_least(self.high, first) and flags.release_at_least(last, self.low)

    def within(self, first: str, last: str) -> bool:
        """Whether the server is certainly one of ``first`` … ``last``."""
        return flags.release_at_least(self.low, first) and flags.release_at_least(last, self.high)

    @property
    def text(self) -> str:
        """``0.5.8`` or ``0.5.6 … 0.5.8``."""
        return self.low if self.low == self.high else f"{self.low} … {self.high}"


@record(frozen=True)
class Config:
    """The configuration: the logged (resolved) server_args, else what the launch command says."""

    fields: Mapping[str, Any]
    launch: Launch | None
    command: LaunchCommand | None

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a server_args field, ``default`` where it is absent or None."""
        value = self.fields.get(name)
        return default if value is None else value

    def number(self, name: str) -> float | None:
        """A numeric field, or None."""
        value = self.fields.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def size(self, name: str) -> int:
        """A parallel size: at least 1."""
        return max(1, int(self.number(name) or 1))

    def typed(self, name: str) -> bool:
        """Whether the launch command names this field."""
        if self.command is None:
            return False
        flag = flags.flag_by_field(name)
        return flag is not None and flag.name in self.command.flags

    def evidence(self, *names: str) -> Evidence | None:
        """Cite the server_args line at the first of the fields it holds; None where the log has no such line."""
        if self.launch is None:
            return None
        present = next((name for name in names if name in self.launch.args), names[0] if names else "server_args=")
        return self.launch.mark.evidence(present)


@record(frozen=True)
class Case:
    """Everything a rule may ask."""

    run: Run
    config: Config
    release: Release
    hardware: Hardware
    command: LaunchCommand | None = None
    notes: tuple[str, ...] = field(default=())
    model_config: Model | None = None  # the model the user described
    hardware_lines: Mapping[str, Evidence] = field(default_factory=dict)  # fields of ``hardware`` that a file beside the log says
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what several rules ask for, worked out once

    # ------------------------------------------------------------------------------------------------ beside the log

    @property
    def side(self) -> Side:
        """What files given beside the log say."""
        return self.run.side

    def said_by(self, name: str) -> str:
        """Where a field of ``hardware`` comes from, for the arithmetic: ``given`` by the user, or the file and line that say it."""
        line = self.hardware_lines.get(name)
        return f"{line.source}:{line.line}" if line else "given"

    # ------------------------------------------------------------------------------------------------ parallel layout

    @cached_property
    def dp_attention(self) -> bool:
        """Whether data parallelism is DP attention, inside the TP group."""
        return bool(self.config.get("enable_dp_attention")) or self.config.size("attn_dp_size") > 1

    @cached_property
    def all_nodes_here(self) -> bool:
        """Whether the log of every node was given: nothing more is to be asked for."""
        nodes = self.config.size("nnodes")
        return nodes > 1 and self.run.nodes == tuple(range(nodes))

    @cached_property
    def schedulers_per_host(self) -> int:
        """Scheduler processes on one machine: TP × PP (× plain DP replicas) over the nodes; at least the ranks the log shows."""
        config = self.config
        world = config.size("tp_size") * config.size("pp_size")
        if not self.dp_attention:
            world *= config.size("dp_size")
        planned = max(1, world // config.size("nnodes"))
        if config.fields:
            return planned
        return max(planned, self._ranks_of_a_host())

    def _ranks_of_a_host(self) -> int:
        """Ranks that the log shows; of several files that hold more than one rank each, those of the fullest: each is a node's."""
        files = [member.ranks for member in self.run.members if member.ranks] if self.run.merged else []
        groups = files if files and min(map(len, files)) > 1 else [self.run.ranks]
        return max(len({(rank.dp if not self.dp_attention else None, rank.pp, rank.tp) for rank in ranks}) for ranks in groups)

    # ------------------------------------------------------------------------------------------------ model and prediction

    @cached_property
    def model(self) -> Model | None:
        """The model's architecture: as the user gave it, by the name of its path, or by a class name that only one model has."""
        if self.model_config is not None:
            return self.model_config
        from logforensics.models import find_model, models_of_class

        found = find_model(str(self.config.get("model_path") or ""))
        if found is not None:
            return found
        loaded = next((step.detail for step in self.run.memory_steps if step.stage == "load_end" and step.detail), None)
        candidates = models_of_class(loaded) if loaded else ()
        return candidates[0] if len(candidates) == 1 else None

    @cached_property
    def kv_prediction(self) -> tuple[int, KvPrediction] | None:
        """KV tokens as logged and as predicted, where the log has the lines."""
        from logforensics.run.kv import kv_prediction

        return kv_prediction(self.run, self.config.fields, self.model, self.release.low, self.release.high)

    # ------------------------------------------------------------------------------------------------ failures in order

    @cached_property
    def failures(self) -> tuple[Failure, ...]:
        """Errors in the order they happened: by time where every one has a time, else by line."""
        found = self.run.failures
        if found and all(failure.mark.time is not None for failure in found):
            return tuple(sorted(found, key=lambda failure: (failure.mark.time, failure.mark.order)))
        return tuple(sorted(found, key=lambda failure: failure.mark.order))

    @cached_property
    def active_troubles(self) -> tuple[Trouble, ...]:
        """Troubles that may be a cause, in the order they happened (see :mod:`logforensics.rules.signs`)."""
        from logforensics.rules.signs import without_noise

        return without_noise(self)

    def served(self, before: Mark | None = None) -> bool:
        """Whether the server was ready or served batches (before a given line)."""
        limit = before.order if before else 1 << 62
        if self.run.ready is not None and self.run.ready.order < limit:
            return True
        return any(window.first.order < limit for window in self.run.serving.windows)
