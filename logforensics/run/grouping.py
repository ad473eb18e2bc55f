"""Which of the logs given together are one run: nodes, ranks or pieces of it; the others are runs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from logforensics import lazy_re
from logforensics.records import record
from logforensics.run.model import Launch, Mark, Rank
from logforensics.run.parts import Part, node_of

# what may differ between the nodes, ranks or starts of one server
_OWN = {
    *("node_rank", "host", "port", "dist_init_addr", "random_seed", "nccl_port", "grpc_port", "metrics_port", "smg_grpc_port"),
    *("base_gpu_id", "gpu_id_step", "gpu_id", "device_id", "local_rank", "rank", "numa_node", "disaggregation_ib_device"),
    *("api_key", "admin_api_key", "download_dir", "crash_dump_folder", "log_requests_target", "file_storage_path"),
    *("model_path", "tokenizer_path", "served_model_name"),
}
_LAYOUT = ("tp_size", "pp_size", "dp_size", "nnodes", "disaggregation_mode")
_DAY = timedelta(hours=26)  # time zones reach from -12 to +14
_NAMED_RANK = lazy_re.compile(r"(?i)(?:^|[^a-z])(?:(?:global|local|tp)[-_]?)?(?:rank|proc|process|worker|task)[-_.]?(\d{1,4})(?!\d)")
_TORCHRUN = lazy_re.compile(r"attempt_\d+/(\d{1,4})/std(?:out|err)\.log$")
_TOLD = 4  # differences


@record(frozen=True)
class Work:
    """When a rank wrote lines of its own into a file, and whether the file holds its start."""

    first: Mark
    last: Mark
    starts: bool


@record(frozen=True)
class File:
    """What one log file says about whose it is: its last server start, its ranks and when each rank worked."""

    source: str
    frames: Mapping[str, Any] = field(repr=False)  # of its last start
    launches: tuple[Launch, ...]
    ranks: frozenset[Rank]
    work: Mapping[Rank, Work]
    role: str
    named_rank: int | None  # the rank its name says, where no line has a tag
    newest_first: bool = False

    @property
    def launch(self) -> Launch | None:
        """Its last server start."""
        return self.launches[-1] if self.launches else None

    @property
    def args(self) -> Mapping[str, Any]:
        """server_args of its last start."""
        return self.launches[-1].args if self.launches else {}

    @property
    def node(self) -> int | None:
        """The node it was written on, where its server_args tell."""
        return node_of(self.args)


def rank_in_name(source: str) -> int | None:
    """The rank that a file's name says: ``rank3.log``, ``worker_3.out``, torchrun's ``attempt_0/3/stderr.log``; None where it says none."""
    found = _TORCHRUN.search(PurePath(source).as_posix()) or _NAMED_RANK.search(PurePath(source).name)
    return int(found[1]) if found else None


def grouped(files: Sequence[File]) -> list[list[File]]:
    """The files of each run; neither the runs nor the files in them depend on the order in which they were given."""
    runs: list[list[File]] = []
    for file in sorted((file for file in files if file.launches), key=_order):
        fitting = [run for run in runs if all(_same_run(file, other) for other in run)]
        _add(runs, file, min(fitting, key=lambda run: _distance(file, run[0]), default=None))
    servers = list(runs)
    for file in sorted((file for file in files if not file.launches), key=_order):
        _add(runs, file, _home(file, servers, runs))
    return runs


def _add(runs: list[list[File]], file: File, home: list[File] | None) -> None:
    if home is None:
        runs.append([file])
    else:
        home.append(file)


def _order(file: File) -> tuple[Any, ...]:
    ranks = sorted((-1 if rank.tp is None else rank.tp) for rank in file.ranks)
    time = file.launch.mark.time if file.launch else None
    return (file.node or 0, ranks[:1], "" if time is None else time.isoformat(), file.source)


# ---------------------------------------------------------------------------------------------------------------- two server starts


def _same_run(one: File, other: File) -> bool:
    """Whether two files with server_args are two nodes, or two ranks, of one start."""
    if one.launch is None or other.launch is None or not _near(one.launch.mark, other.launch.mark):
        return False
    if one.role != other.role or _model(one.args) != _model(other.args) or not _agree(one.args, other.args, _LAYOUT):
        return False
    if one.node is not None and other.node is not None:
        return one.node != other.node
    apart = bool(one.ranks and other.ranks) and not one.ranks & other.ranks
    return apart and not differences(one.args, other.args)


def _near(one: Mark, other: Mark) -> bool:
    """Whether two clocks can show these times at nearly one moment."""
    return one.time is None or other.time is None or abs(one.time - other.time) <= _DAY


def _agree(one: Mapping[str, Any], other: Mapping[str, Any], fields: Iterable[str]) -> bool:
    return all(one[name] == other[name] for name in fields if name in one and name in other)


def _model(args: Mapping[str, Any]) -> str:
    """The model without its folder: nodes may keep it in different places."""
    return PurePath(str(args.get("model_path") or "")).name


def _distance(file: File, head: File) -> tuple[bool, float]:
    """How badly a file fits to a run: another rendezvous, then the time between the launches."""
    address = file.args.get("dist_init_addr") != head.args.get("dist_init_addr")
    if file.launch is None or head.launch is None or file.launch.mark.time is None or head.launch.mark.time is None:
        return address, 0.0
    return address, abs((file.launch.mark.time - head.launch.mark.time).total_seconds())


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Flags that both logs print and that all nodes of a run should share, with other values: name, here, there."""
    return tuple((name, here[name], there[name]) for name in here if name in there and name not in _OWN and here[name] != there[name])


# ---------------------------------------------------------------------------------------------------------------- files without server_args


def _home(file: File, servers: Sequence[list[File]], runs: Sequence[list[File]]) -> list[File] | None:
    """The run that a file without server_args belongs to, or None."""
    if len(servers) > 1 and file.role == "router":
        return None  # it stands in front of all of them
    fitting = [run for run in servers or runs if not any(_exclude(file, other) for other in run)]
    if len(servers) <= 1:
        return fitting[0] if fitting else None
    likely = [run for run in fitting if file.work and _continues(file, run)]
    return likely[0] if len(likely) == 1 else None


def _exclude(one: File, other: File) -> bool:
    """Whether two files cannot be of one run: one rank starts in both, or writes into both at the same time."""
    if {one.role, other.role} == {"prefill", "decode"}:
        return True
    for rank in one.work.keys() & other.work.keys():
        mine, theirs = one.work[rank], other.work[rank]
        if mine.starts and theirs.starts:
            return True
        times = (mine.first.time, mine.last.time, theirs.first.time, theirs.last.time)
        if None not in times and times[0] < times[3] and times[2] < times[1]:  # type: ignore[operator]
            return True
    return False


def _continues(file: File, run: Sequence[File]) -> bool:
    """Whether a file has ranks that a run lacks, or goes on where a file of the run ends."""
    seen = frozenset().union(*(other.work.keys() for other in run))
    tp = run[0].args.get("tp_size")
    fresh = file.work.keys() - seen
    return all(rank.tp is None or not isinstance(tp, int) or rank.tp < tp for rank in fresh) and (
        bool(fresh) or any(file.work.keys() & other.work.keys() for other in run)
    )


# ---------------------------------------------------------------------------------------------------------------- different runs


def is_restart(later: File, earlier: File) -> bool:
    """Whether a file holds the start of the same server, with the same flags, before the one in another file."""
    if later.launch is None or earlier.launch is None or later.role != earlier.role or later.node != earlier.node:
        return False
    if _model(later.args) != _model(earlier.args) or differences(later.args, earlier.args):
        return False
    if later.args.get("port") != earlier.args.get("port") or later.args.get("host") != earlier.args.get("host"):
        return False
    started, begin = earlier.launch.mark.time, later.launch.mark.time
    if started is None or begin is None or started >= begin:
        return False
    return all(work.last.time is None or work.last.time <= begin for work in earlier.work.values())


def relation(part: Part, main: Part) -> str:
    """What a run has to do with the one that is told first, in one sentence."""
    roles = {part.role, main.role}
    if part.role == "router":
        return "the router in front of the servers"
    if roles == {"prefill", "decode"} and _model(part.args) == _model(main.args):
        return f"the {part.role} side of the same deployment"
    if not part.args or not main.args:
        return "another run: the same ranks start, or write at the same time, in both logs, and one of them has no server_args"
    if _model(part.args) != _model(main.args):
        return f"another run: model {_model(part.args)}, not {_model(main.args)}"
    told = [f"{name} {here}, not {there}" for name, here, there in differences(part.args, main.args)]
    if told:
        return f"another run: {', '.join(told[:_TOLD])}{', …' if len(told) > _TOLD else ''}"
    here, there = _first_launch(part), _first_launch(main)
    if here is not None and there is not None and here.mark.time is not None and here.mark.time == there.mark.time:
        return "a start at the same moment with the same flags: a second server, or a copy of the log"
    return "another start with the same flags"


def _first_launch(part: Part) -> Launch | None:
    return next((member.launch for member in part.members if member.launch is not None), None)
