"""A launch command: reading what people paste, rebuilding one from logged server_args, and rewriting one with changes applied.

Nothing is ever executed. Reading has three steps that do not know of each other: ``_commands`` splits text into simple commands the
way a shell would, ``_find_launch`` looks for the one that starts a server, ``_read_flags`` groups its words as argparse would.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from logforensics.diagnosis import CorrectedCommand, FlagChange
from logforensics.errors import CommandError
from logforensics.findings import Action, Recommendation
from logforensics.secrets import MASK, is_secret, mask
from logforensics.sglang.flags import (
    Flag,
    default,
    find_flag,
    flag_by_field,
    flag_in,
    nearest_release,
    release_at_least,
    releases,
    spelling_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MODULES = frozenset({"sglang.launch_server", "sglang.srt.server", "sglang_router.launch_server"})
_SCRIPT = re.compile(r"(?:^|.*/)sglang/(?:srt/server|launch_server)\.py|launch_server\.py")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_LAUNCH_INSIDE = re.compile(r"sglang\.launch_server|sglang\s+serve\b")
_IMAGE = re.compile(r"[\w./:-]{0,200}sglang\w{0,40}:(?P<tag>v?\d[\w.-]*)")

# Exported variables that steer a run; MODEL=, PORT= and the like only serve the script that sets them.
_RUN_TIME = re.compile(
    r"""(?: SGLANG | SGL | NCCL | RCCL | HCCL | GLOO | NVSHMEM | UCX | MC | MOONCAKE | CUDA | NVIDIA | HIP | ROCM | ROCR | HSA | GPU
          | ASCEND | PYTORCH | TORCH | TORCHINDUCTOR | TRITON | VLLM | AITER | FLASHINFER | DEEPEP | DG | HF | HUGGING | TRANSFORMERS
          | TOKENIZERS | OMP | MKL | KMP | PYTHON | DYN | RAY | LD | XDG )_\w+
      | PYTHON\w+ | MAX_JOBS | REQUEST_TIMEOUT | (?i:no_proxy|https?_proxy)""",
    re.VERBOSE,
)

# What pasting adds to a command, removed before it is read.
_TYPOGRAPHY = str.maketrans({"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u200b": "", "\ufeff": "", "\u2018": "'", "\u2019": "'",
                             "\u201c": '"', "\u201d": '"', "\r": ""})  # fmt: skip
_LONG_DASH = re.compile(r"(?<![^\s'\"])[\u2013\u2014](?=[a-z])")
_PROMPT = re.compile(
    r"""^[ \t]*
    (?: \([^()\s]+\) [ \t]* )*                                        # (venv)
    (?: [^\s'"=]*[\w~\])/] [$#%>] | [$%❯➜] | \S+ [ \t]+ ➜ | In\ \[\d+\]: )   # user@host:/dir$, $, Singularity>, sgl ➜
    [ \t]+ (?= \S )""",
    re.MULTILINE | re.VERBOSE,
)
_NOTEBOOK = re.compile(r"^[ \t]*!(?=[\w./~])", re.MULTILINE)
_AROUND = " \t\n*`"  # markdown
_COMMENTED = re.compile(r"^[ \t]*#+[ \t]+", re.MULTILINE)

_TOKEN = re.compile(
    r"""
    (?P<joined>   \\\n )
  | (?P<escaped>  \\. )
  | (?P<single>   '[^']*' )
  | (?P<double>   "(?:\\.|[^"\\])*" )
  | (?P<expanded> \$\(\( (?:[^()]|\([^()]*\))* \)\) | \$\([^()]*\) | \$\{[^{}]*\} | \$\w+ )
  | (?P<comment>  (?<![^\s;&|()])\#[^\n]* )
  | (?P<redirect> (?<![^\s;&|()])\d*(?:>>|>\||>&|>|<<<|<<-?|<&|<) | &>>? )
  | (?P<end>      \n | \|\|? | &&? | ;+ | [()] )
  | (?P<blank>    [ \t]+ )
  | (?P<plain>    [^\s\\'"|&;<>()$]+ | . )
    """,
    re.DOTALL | re.VERBOSE,
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")


@dataclass(frozen=True)
class LaunchCommand:
    """A server launch. ``flags`` are canonical names with typed values, in the order given; the last of a repeated flag counts.

    ``program`` are the words up to and including the module or subcommand (a docker prefix stays in it), ``typed`` the spelling each
    flag was written with, ``env`` the run-time variables set for the server. ``unknown`` are flags that argparse would refuse (they
    are in ``flags`` too, as written) and words that belong to no flag. A value that is not of the flag's type stays text; a flag whose
    value is missing has the value None.
    """

    program: tuple[str, ...]
    flags: dict[str, Any] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def image_release(self) -> str | None:
        """The release that a container image tag in ``program`` names (``lmsysorg/sglang:v0.4.8.post1-rocm630-srt``), if any."""
        tags = (_IMAGE.fullmatch(word) for word in self.program)
        return next((nearest_release(found["tag"]) for found in tags if found), None)


def read_command(text: str, release: str | None = None) -> LaunchCommand:
    """Read the first SGLang launch in a pasted text: shell lines with prompts, comments, variables, docker, redirections and all.

    Flags are resolved for ``release``; where it is None or unreadable for the release of the container image, or else for the newest
    release that knows each flag.

    Raises:
        CommandError: there is no SGLang launch in the text.
    """
    clean = _normalise(text)
    words, exported = _find_launch(clean) or _find_launch(_COMMENTED.sub("", clean)) or (None, {})
    if words is None:
        shown = " ".join(text.split())[:80]
        raise CommandError(
            f"no SGLang launch in {shown!r}: expected `python -m sglang.launch_server --model-path …` or `sglang serve --model-path …`"
        )
    own, words = _split_assignments(words)
    end = _launch_end(words) or 0
    program = tuple(words[:end])
    bare = LaunchCommand(program, env={**exported, **own, **_env_of_words(program)})
    return _read_flags(bare, words[end:], nearest_release(release or "") or bare.image_release)


def from_server_args(fields: Mapping[str, object], release: str | None) -> LaunchCommand:
    """Rebuild the launch line behind a logged server_args record: what a person would have typed to get it.

    A field is written when its value differs from the release's default and the tables below do not know it as something SGLang works
    out by itself. Without a release the newest one is assumed.
    """
    spoken = nearest_release(release or "") or releases()[-1]
    flags: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for name in sorted(fields, key=_typing_order):
        flag, spelling = flag_by_field(name), spelling_for(name, spoken)
        value = _as_typed(name, fields, spoken)
        if flag is None or spelling is None or value is None:
            continue
        if value is False:  # off where on is the default: --no-x
            spelling = next((s for s in flag.implied if spoken in flag.spellings[s]), spelling)
        if flag.takes_list and isinstance(value, dict):  # lora_paths: name=path words
            value = [f"{key}={item}" for key, item in value.items()]
        flags[flag.name], typed[flag.name] = value, spelling
    return LaunchCommand(("python", "-m", "sglang.launch_server"), flags, typed)


def rewrite(command: LaunchCommand, recommendations: Sequence[Recommendation], release: str | None) -> CorrectedCommand:
    """The command with the recommendations applied, ready to paste.

    Only changes with a concrete value count, the first for each flag wins, and alternatives (their rationale says so) are left to the
    reader. Order and spelling of the given flags stay; flags the release would refuse are renamed or dropped, which the notes say.
    """
    draft = _Draft(command, release)
    for recommendation in recommendations:
        draft.apply(recommendation)
    return draft.finish()


# --- from text to words -----------------------------------------------------------------------------------------------------------


def _normalise(text: str) -> str:
    """Undo what word processors, chats, prompts and markdown do to a command."""
    plain = text.translate(_TYPOGRAPHY).strip(_AROUND).rstrip(_AROUND + "\\")  # a last backslash continues into nothing
    return _NOTEBOOK.sub("", _PROMPT.sub("", _LONG_DASH.sub("--", plain)))


def _commands(text: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The simple commands of a shell text as words, each with the variables exported before it. Redirections are dropped.

    Variables the text itself defines are put in; others stay as they are written, ``$NAME``.
    """
    variables: dict[str, str] = {}
    exported: dict[str, str] = {}
    for words in _split(text, variables):
        assigned, rest = _split_assignments(words)
        if not rest:
            variables.update(assigned)
        elif rest[0] == "export":
            new = _split_assignments(rest[1:])[0]
            variables.update(new)
            exported.update({n: v for n, v in new.items() if _RUN_TIME.fullmatch(n)})
        else:
            yield words, dict(exported)


def _split(text: str, variables: Mapping[str, str]) -> Iterator[list[str]]:
    """Words of each simple command. ``variables`` may grow while this runs."""
    line = _Line()
    for found in _TOKEN.finditer(text):
        kind = str(found.lastgroup)
        if kind == "expanded":
            line.add_expanded(found[0], _expand(found[0], variables))
        elif kind in _PIECES:
            piece = _PIECES[kind](found[0])
            line.add(_expand(piece, variables) if kind == "double" else piece)
        elif kind == "redirect":
            line.end_word()
            line.target_follows = True
        elif kind == "end":
            yield from line.end()
        elif kind == "blank" or not line.in_word:
            line.end_word()
    yield from line.end()


class _Line:
    """The words of a simple command as they come together."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.word = ""
        self.in_word = False
        self.target_follows = False  # the next word is the file of a redirection

    def add(self, piece: str) -> None:
        """A piece that belongs to the current word even when it is empty, as quotes do."""
        self.word += piece
        self.in_word = True

    def add_expanded(self, source: str, value: str) -> None:
        """An unquoted variable: its value is split at blanks, and no word is left where it is empty."""
        pieces = [value] if value == source else value.split()
        for piece in pieces[:-1]:
            self.add(piece)
            self.end_word()
        for piece in pieces[-1:]:
            self.add(piece)

    def end_word(self) -> None:
        """Finish the current word, if there is one."""
        if self.in_word and not self.target_follows:
            self.words.append(self.word)
        self.target_follows = self.target_follows and not self.in_word
        self.word, self.in_word = "", False

    def end(self) -> Iterator[list[str]]:
        """Finish the command, if there is one."""
        self.end_word()
        self.target_follows = False
        if self.words:
            yield self.words
        self.words = []


_PIECES: Mapping[str, Callable[[str], str]] = {
    "escaped": lambda token: token[1:],
    "single": lambda token: token[1:-1],
    "double": lambda token: re.sub(r"\\(?:\n|([\\\"`]))", r"\1", token[1:-1]),
    "plain": str,
}


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Put in the variables that are known, and defaults (``${X:-8}``) of those that are not."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return variables.get(name) or (found[3] if found[3] is not None else found[0] if name not in variables else "")

    return _VARIABLE.sub(value, text)


def _split_assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Leading ``NAME=value`` words, and the words after them."""
    found: dict[str, str] = {}
    for position, word in enumerate(words):
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment is None:
            return found, list(words[position:])
        found[assignment[1]] = assignment[2]
    return found, []


# --- finding the launch -----------------------------------------------------------------------------------------------------------


def _find_launch(text: str) -> tuple[list[str], dict[str, str]] | None:
    """The words of the first command that starts a server, and the variables exported before it."""
    for words, exported in _commands(text):
        if _launch_end(words):
            return words, exported
        for word in words:  # bash -c "…", tmux new-session "…"
            inner = _find_launch(word) if _LAUNCH_INSIDE.search(word) and word != text else None
            if inner:
                return inner[0], {**exported, **inner[1]}
    return None


def _launch_end(words: Sequence[str]) -> int | None:
    """How many words lead up to the server's own flags; None where the words start no server."""
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        if word == "-m" and following in _MODULES:
            return position + 2
        if (word == "sglang" or word.endswith("/sglang")) and following == "serve":
            return position + 2
        if _SCRIPT.fullmatch(word):
            # a process manager keeps its own options before the double dash
            return words.index("--", position) + 1 if "--" in words[position:] else position + 1
    return None


def _env_of_words(program: Sequence[str]) -> dict[str, str]:
    """Variables that a wrapper sets: ``env NAME=value``, ``docker run -e NAME=value``, ``--env NAME=value``."""
    set_here = (word.removeprefix("--env=") for word in program)
    found = (_ASSIGNMENT.fullmatch(word) for word in set_here)
    return {f[1]: f[2] for f in found if f}


# --- from words to flags ----------------------------------------------------------------------------------------------------------


def _read_flags(bare: LaunchCommand, words: Sequence[str], release: str | None) -> LaunchCommand:
    flags: dict[str, Any] = {}
    typed: dict[str, str] = {}
    unknown: list[str] = []
    for spelling, values in _grouped(words):
        if not spelling:
            unknown += values
            continue
        flag = find_flag(spelling, release) or find_flag(spelling)
        if flag is None or (release and find_flag(spelling, release) is None):
            unknown.append(spelling)
        value, left_over = _value(flag, spelling, values)
        unknown += left_over
        name = flag.name if flag else spelling
        flags[name], typed[name] = value, spelling
    return replace(bare, flags=flags, typed=typed, unknown=tuple(unknown))


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words after it. Words before the first flag come under an empty name."""
    spelling, values = "", list[str]()
    for word in words:
        if word.startswith("--") and len(word) > len("--"):
            if spelling or values:
                yield spelling, values
            spelling, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if spelling or values:
        yield spelling, values


def _value(flag: Flag | None, spelling: str, values: Sequence[str]) -> tuple[Any, list[str]]:
    """The typed value of a flag from the words after it, and the words that are left over."""
    if flag is None:
        return (values[0], list(values[1:])) if values else (True, [])
    if spelling in flag.implied or flag.is_switch:
        return flag.implied.get(spelling, True), list(values)
    if not values:
        return None, []
    if flag.takes_list:
        return [_converted(flag.kind, v) for v in values], []
    return _converted(flag.kind, values[0]), list(values[1:])


_CONVERTERS: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "json": json.loads}


def _converted(kind: str, text: str) -> Any:
    """The value of one word; text that does not fit the type stays text, as ``$PORT`` does."""
    try:
        return _CONVERTERS.get(kind, str)(text)
    except ValueError:
        return text


# --- rebuilding a command from server_args ----------------------------------------------------------------------------------------

# Read first on a launch line; everything else follows in the order of server_args.
_FIRST = (
    "model_path", "tokenizer_path", "served_model_name", "trust_remote_code", "tp_size", "dp_size", "pp_size", "ep_size", "attn_dp_size",
    "enable_dp_attention", "nnodes", "node_rank", "dist_init_addr", "host", "port", "mem_fraction_static",
)  # fmt: skip

# Worked out by SGLang, or of no use in another run.
_NEVER_TYPED = frozenset({
    "additional_ports", "boundary_reduction", "cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs_prefill", "cuda_graph_config",
    "cuda_graph_max_bs_prefill", "cuda_graph_tc_compiler", "disaggregation_decode_extra_slots", "encoder_transfer_backend",
    "enable_dp_attention_local_control_broadcast", "ep_dispatch_algorithm", "expert_distribution_recorder_buffer_size", "forward_hooks",
    "hicache_host_memory_fraction", "kt_amx_method", "kt_method", "load_balance_method", "mamba_radix_cache_strategy",
    "mamba_scheduler_strategy", "mm_feature_transport", "nccl_port", "piecewise_cuda_graph_max_tokens", "piecewise_cuda_graph_tokens",
    "random_seed", "speculative_draft_model_revision", "stat_loggers", "uvicorn_access_log_exclude_prefixes",
})  # fmt: skip

# What the platform gets when nothing is typed. Backends that people choose on purpose (triton, flashinfer, …) are not here: writing
# down what ran is never wrong, leaving out what was typed may be.
_CHOSEN: Mapping[str, frozenset[Any]] = {
    "attention_backend": frozenset({"fa3", "trtllm_mha", "trtllm_mla", "aiter", "ascend", "torch_native", "intel_amx"}),
    "mm_attention_backend": frozenset({"fa3", "triton_attn", "ascend_attn", "aiter_attn", "sdpa"}),
    "sampling_backend": frozenset({"flashinfer", "ascend"}),
    "grammar_backend": frozenset({"xgrammar"}),
    "device": frozenset({"cuda"}),
    "page_size": frozenset({1}),
    "speculative_moe_runner_backend": frozenset({"auto"}),
    "hicache_ratio": frozenset({2.0}),
    "swa_full_tokens_ratio": frozenset({0.8}),
    "mamba_full_memory_ratio": frozenset({0.9}),
    "dcp_comm_backend": frozenset({"ag_rs"}),
    "prefill_decode_interval": frozenset({0}),
    "kt_threadpool_count": frozenset({2}),
}

# How server_args shows that nothing was given.
_UNSET: tuple[Any, ...] = (None, "None", "", "<redacted>", [], {})

# Fields that SGLang fills from another field when they are not typed.
_COPIES: Mapping[str, str] = {
    "tokenizer_path": "model_path",
    "served_model_name": "model_path",
    "decode_attention_backend": "attention_backend",
    "prefill_attention_backend": "attention_backend",
    "speculative_draft_attention_backend": "attention_backend",
    "speculative_draft_model_quantization": "quantization",
}

# Fields that follow from other fields when those were typed.
_BROUGHT_ABOUT: Mapping[str, tuple[str, ...]] = {
    "cuda_graph_max_bs": ("disable_cuda_graph",),
    "disable_piecewise_cuda_graph": ("enable_multimodal", "disable_cuda_graph"),
    "enable_dp_attention": ("attn_dp_size",),
    "hicache_ratio": ("hicache_size",),
    "sampling_backend": ("device",),
}


def _typing_order(name: str) -> tuple[int, bool]:
    return (_FIRST.index(name), False) if name in _FIRST else (len(_FIRST), True)


def _as_typed(name: str, fields: Mapping[str, Any], release: str) -> Any:
    """The value a person would have typed for a field, or None where nobody would have."""
    value, usual = _before_division(name, fields, release), default(name, release)
    if value in _UNSET or _same(value, usual) or name in _NEVER_TYPED:
        return None
    if _same(value, fields.get(_COPIES.get(name, ""))) or any(_same(value, chosen) for chosen in _CHOSEN.get(name, ())):
        return None
    if name == "mem_fraction_static" and isinstance(value, float) and round(value, 4) != value:  # nobody types 0.8387624218749999
        return None
    if value is False and usual is not True:  # a switch that SGLang resolved to "no"
        return None
    follows = any(_as_typed(other, fields, release) is not None for other in _BROUGHT_ABOUT.get(name, ()))
    return None if follows else value


def _before_division(name: str, fields: Mapping[str, Any], release: str) -> Any:
    """Undo what DP attention does to the typed value before server_args is logged; typed again, it would be done twice."""
    value = fields.get(name)
    if not fields.get("enable_dp_attention") or not isinstance(value, (int, float)):
        return value
    if name == "chunked_prefill_size" and value > 0:
        groups = max(n if isinstance(n := fields.get(field_name), int) else 1 for field_name in ("dp_size", "attn_dp_size"))
        return value * (groups if release_at_least(release, "0.4.5") else 2)
    if name == "schedule_conservativeness" and not _same(value, default(name, release)):
        return round(value / 0.3, 6)
    return value


def _same(one: object, other: object) -> bool:
    """Equal, and of the same kind: 1 is not True."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


# --- applying recommendations -----------------------------------------------------------------------------------------------------

_SETTING = frozenset({Action.SET, Action.INCREASE, Action.DECREASE})

_REFERENCE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")

# Two ways to say one thing: setting one takes the other away.
_EITHER_OR: Mapping[str, str] = {"hicache_size": "hicache_ratio", "hicache_ratio": "hicache_size"}


class _Draft:
    """A command while it is being changed."""

    def __init__(self, command: LaunchCommand, release: str | None) -> None:
        self.command = command
        self.release = nearest_release(release or "") or command.image_release
        self.program = list(command.program)
        self.env = dict(command.env)
        self.flags = dict(command.flags)
        self.settled: set[str] = set()
        self.changes: list[FlagChange] = []
        self.notes: list[str] = []

    def apply(self, recommendation: Recommendation) -> None:
        """Take over one recommendation, where it can be and no earlier one has settled the matter."""
        if recommendation.rationale.startswith("Alternative:"):
            return
        if recommendation.action is Action.ENV:
            self._set_variable(recommendation)
        elif recommendation.action is Action.REMOVE or (recommendation.action in _SETTING and recommendation.value is not None):
            self._change_flag(recommendation)

    def finish(self) -> CorrectedCommand:
        """The command as text, with what was changed and what the reader has to know."""
        words = [self._words_of(name, value) for name, value in self.flags.items()]
        stray = [w for w in self.command.unknown if not w.startswith("--")]
        if stray:
            self.notes.append(f"left out, because no flag takes them: {mask(' '.join(map(shlex.quote, stray)))}")
        in_program = _env_of_words(self.program)
        lines = [f"{n}={_quoted(_hidden(n, v))}" for n, v in self.env.items() if n not in in_program]
        lines.append(" ".join(_quoted(mask(word)) for word in self.program))
        lines += [" ".join(map(_quoted, w)) for w in words if w]
        text = mask(" \\\n  ".join(lines))
        if MASK in text:
            self.notes.append(f"{MASK} stands for a secret that is not shown: put it in again before starting the server")
        return CorrectedCommand(text, tuple(self.changes), tuple(self.notes))

    def _change_flag(self, recommendation: Recommendation) -> None:
        flag = self._flag(recommendation.flag)
        if flag is None:
            if recommendation.flag.startswith("--"):
                self.notes.append(f"the recommended {recommendation.flag} is left out: {self._refusal}")
            return
        if flag.field in self.settled:
            return
        self.settled.add(flag.field)
        if recommendation.action is Action.REMOVE or (flag.is_switch and not recommendation.value):
            self._remove(flag.field, recommendation.rationale)
            return
        name = self._present(flag.field) or flag.name
        value = _fitting(flag, recommendation.value)
        self._record(name, value, recommendation.rationale)
        self.flags[name] = value
        rival = _EITHER_OR.get(flag.field)
        if rival:
            self.settled.add(rival)
            self._remove(rival, f"{flag.name} takes its place")

    def _set_variable(self, recommendation: Recommendation) -> None:
        name, value = recommendation.flag, recommendation.value
        if name in self.settled or value is None or not name.isidentifier():
            return
        self.settled.add(name)
        text = str(int(value) if isinstance(value, bool) else value)
        old = self.env.get(name)
        if old == text:
            return
        self.changes.append(FlagChange(name, old and _hidden(name, old), _hidden(name, text), recommendation.rationale))
        self.env[name] = text
        if name in _env_of_words(self.program):
            given = re.compile(rf"((?:--env=)?{name}=).*", re.DOTALL)
            self.program = [f"{found[1]}{text}" if (found := given.fullmatch(word)) else word for word in self.program]
        elif "run" in self.program and self.program[0].rpartition("/")[2] in {"docker", "podman", "sudo"}:
            after = self.program.index("run") + 1
            self.program[after:after] = ["-e", f"{name}={text}"]

    def _remove(self, field_name: str, why: str) -> None:
        name = self._present(field_name)
        if name is not None:
            self._record(name, None, why)
            del self.flags[name]

    def _record(self, name: str, new: Any, why: str) -> None:
        old = self.flags.get(name)
        if not _same(old, new):
            self.changes.append(FlagChange(name, _hidden(name, old), _hidden(name, new), why))

    def _present(self, field_name: str) -> str | None:
        """The name under which the command has a flag, which may be an older or newer one."""
        return next((n for n in self.flags if (f := self._flag(self.command.typed.get(n, n))) and f.field == field_name), None)

    def _flag(self, spelling: str) -> Flag | None:
        """The flag as the release knows it; None where it has none. Without a release, the newest one that knows it."""
        flag = (find_flag(spelling, self.release) if self.release else None) or find_flag(spelling)
        if flag is None or self.release is None:
            return flag
        return flag_in(flag.field, self.release)

    @property
    def _refusal(self) -> str:
        return f"SGLang {self.release} does not accept it" if self.release else "no known SGLang release accepts it"

    def _words_of(self, name: str, value: Any) -> list[str]:
        """The words of one flag, or none (with a note) where the release would refuse it."""
        typed = self.command.typed.get(name, name)
        if value is None:
            return self._dropped(name, f"{typed} has no value: left out")
        known = find_flag(typed, self.release) if self.release else find_flag(typed)
        if known and typed in known.implied and known.implied[typed] == value:
            return [typed]
        if known and typed not in known.implied and (not known.is_switch or value is True):
            return _written(typed, value)
        return self._respelled(name, typed, value)

    def _respelled(self, name: str, typed: str, value: Any) -> list[str]:
        """The words of a flag that cannot stay as it was written."""
        flag = find_flag(typed) or find_flag(name)
        spelling = spelling_for(flag.field, self.release) if flag and self.release else flag and flag.name
        if flag and value is False:  # a switch that is off is not written
            return []
        words = _written(spelling, value) if spelling else self._replacement(flag)
        if words:
            self.notes.append(f"{typed} is written {' '.join(words)}: SGLang {self.release} does not accept the old form")
            return words
        hint = f" (see {flag.replacement})" if flag and flag.replacement else ""
        return self._dropped(name, f"{typed} is left out: {self._refusal}{hint}")

    def _replacement(self, flag: Flag | None) -> list[str]:
        """``--flag value`` where SGLang names exactly that as the successor of a switch, and the release knows it."""
        instead, equals, value = str(flag.replacement if flag else "").partition("=")
        return [instead, value] if equals and self.release and find_flag(instead, self.release) else []

    def _dropped(self, name: str, note: str) -> list[str]:
        self.notes.append(note)
        self.changes.append(FlagChange(name, _hidden(name, self.flags[name]), None, note))
        return []


def _written(spelling: str, value: Any) -> list[str]:
    """The words of a flag: a switch stands alone, a list puts one word per value behind it."""
    if value is True:
        return [spelling]
    shown = [_hidden(spelling, v) for v in (value if isinstance(value, list) else [value])]
    words = [json.dumps(v, default=str) if isinstance(v, dict) else f"{v:.15g}" if isinstance(v, float) else str(v) for v in shown]
    if len(words) == 1 and words[0].startswith("-") and not re.fullmatch(r"-[\d.]+", words[0]):
        return [f"{spelling}={words[0]}"]  # argparse would take the value for a flag
    return [spelling, *words]


def _fitting(flag: Flag, value: Any) -> Any:
    """A recommended value in the type the flag takes."""
    if flag.is_switch:
        return True
    if flag.kind == "int" and isinstance(value, float):
        value = int(value)
    return [value] if flag.takes_list and not isinstance(value, list) else value


def _hidden(name: str, value: Any) -> Any:
    """The value, masked where it is a secret. A reference to a variable is none."""
    if isinstance(value, str) and not value.startswith("$"):
        return MASK if is_secret(name) else mask(value)
    return value


def _quoted(word: str) -> str:
    """The word as a shell needs it. Variables and a leading ~ keep their meaning; commands inside a word never get one."""
    if re.fullmatch(r"~/[\w@%+=:,./-]*", word):
        return word
    rest = _REFERENCE.sub("", word)
    if rest != word and not re.search(r'[$`"\\!\n]', rest):
        return f'"{word}"'
    return shlex.quote(word)
