"""One spelling for the many names of a model: paths, hub ids, quantised copies."""

from __future__ import annotations

import re

from logforensics import lazy_re

# Words that a quantised, converted or dated copy adds to a name without changing the shape of the model.
_DECORATION = lazy_re.compile(
    r"""
    (?: w[48]a(?:4|8|16) | fp[48] | nvfp4 | mxfp[48] | int[48] | bf16 | fp16 | bnb | [48]bit  # number formats
      | awq | gptq | gguf | ggml | marlin | exl[23] | autoround | modelopt | quantized | quant | ct  # quantisers
      | q[2-8] | k | [msl] | iq[1-4] | xxs | xs   # llama.cpp names such as Q4_K_M
      | per | channel | block | dynamic | static | g128 | qat | quarot | mindie | smooth | smoothquant | pruned  # how it was quantised
      | hf | unsloth | mlx | safetensors | latest | main | model | weights  # packaging
      | \d{4} | 2[0-9]{5} | v\d+  # dates and revisions: 0528, 2507, 250705
      | instruct | chat | it | thinking | base | preview | exp | tee  # same shape, other training
    )""",
    re.VERBOSE,
)
_HUB_FOLDER = lazy_re.compile(r"models--(.+)")  # how the hub's cache names a repository: models--org--name
_SEPARATORS = lazy_re.compile(r"[^a-z0-9.]+")


def key(name: str) -> str:
    """A name in one spelling: lower case, nothing between the words."""
    return "".join(_words(name))


def candidates(name_or_path: str) -> list[str]:
    """Keys to look a name up by, the most specific first.

    For each part of a path, from the last to the first: the part itself, then with its trailing decoration removed word by word.
    """
    parts = [part for part in re.split(r"[\\/]", name_or_path.strip()) if part not in ("", ".", "..", "snapshots")]
    found: list[str] = []
    for part in reversed(parts):
        folder = _HUB_FOLDER.fullmatch(part)
        found += _undecorated(_words(folder[1].split("--")[-1] if folder else part.removesuffix(".gguf")))
    return found


def _words(name: str) -> list[str]:
    return [word for word in _SEPARATORS.split(name.lower()) if word]


def _undecorated(words: list[str]) -> list[str]:
    keys = ["".join(words)]
    while len(words) > 1 and _DECORATION.fullmatch(words[-1]):
        words = words[:-1]
        keys.append("".join(words))
    return keys
