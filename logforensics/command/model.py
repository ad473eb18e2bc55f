"""What a launch command says, whatever form it was written in."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.records import record
from logforensics.sglang.flags import nearest_release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_PROGRAM = ("python", "-m", "sglang.launch_server")

_ASSIGNMENT = lazy_re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_IMAGE = lazy_re.compile(r"(?:docker://)?[\w./:-]{0,200}sglang\w{0,40}:(?P<tag>v?\d[\w.-]*)")

# Exported variables that steer a run; MODEL=, PORT= and the like only serve the script that sets them.
_RUN_TIME = lazy_re.compile(
    r"""(?: SGLANG | SGL | NCCL | RCCL | HCCL | GLOO | NVSHMEM | UCX | MC | MOONCAKE | CUDA | NVIDIA | HIP | ROCM | ROCR | HSA | GPU
          | ASCEND | PYTORCH | TORCH | TORCHINDUCTOR | TRITON | VLLM | AITER | FLASHINFER | DEEPEP | DG | HF | HUGGING | TRANSFORMERS
          | TOKENIZERS | OMP | MKL | KMP | PYTHON | DYN | RAY | LD )_\w+
      | PYTHON\w+ | MAX_JOBS | REQUEST_TIMEOUT | (?i:no_proxy|https?_proxy)""",
    re.VERBOSE,
)


@record(frozen=True)
class Invocation:
    """One command that a text would run: its words, and the environment it would get (all variables, also those of the script itself)."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None


@record(frozen=True)
class Place:
    """What the text around a command says about the machine: container and scheduler limits. None where it says nothing.

    Attributes:
        image: container image.
        gpus: GPUs the process may use.
        memory_bytes: limit of host memory, bytes; it counts instead of the node's memory.
        nodes: machines that one server spans.
    """

    image: str | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    nodes: int | None = None


@record(frozen=True)
class LaunchCommand:
    """A server launch. ``flags`` are canonical names with typed values, in the order given; the last of a repeated flag counts.

    ``program`` are the words up to and including the module or subcommand (a docker prefix stays in it), ``typed`` the spelling each
    flag was written with, ``env`` the run-time variables set for the server. ``unknown`` are flags that argparse would refuse (they
    are in ``flags`` too, as written) and words that belong to no flag. A value that is not of the flag's type stays text; a flag whose
    value is missing has the value None. ``repairs`` says which characters a shell would not understand were read as what was meant;
    ``place`` is what the text says of the machine.
    """

    program: tuple[str, ...]
    flags: dict[str, Any] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    place: Place = field(default_factory=Place)

    @property
    def image_release(self) -> str | None:
        """The release that a container image's tag names (``lmsysorg/sglang:v0.4.8.post1-rocm630-srt``), if any."""
        return image_release((*self.program, *([self.place.image] if self.place.image else [])))


def image_release(words: Sequence[str]) -> str | None:
    """The release that the tag of an SGLang image among the words names; None where there is none."""
    tags = (_IMAGE.fullmatch(word) for word in words)
    return next((nearest_release(found["tag"]) for found in tags if found), None)


def image_version(words: Sequence[str]) -> str | None:
    """The version text of an SGLang image's tag among the words, as written (``0.5.3rc1-cu126``)."""
    tags = (_IMAGE.fullmatch(word) for word in words)
    return next((found["tag"].lstrip("v") for found in tags if found and nearest_release(found["tag"])), None)


def assignment(word: str) -> tuple[str, str] | None:
    """Name and value of a ``NAME=value`` word; None where it is something else."""
    found = _ASSIGNMENT.fullmatch(word)
    return (found[1], found[2]) if found else None


def steers_a_run(name: str) -> bool:
    """Whether an environment variable is read by the server or a library under it."""
    return _RUN_TIME.fullmatch(name) is not None
