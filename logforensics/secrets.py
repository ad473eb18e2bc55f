"""Hiding secrets: API keys, tokens and passwords in any text that people share.

``None``, numbers and words such as ``True`` are no secrets and stay, so that ``api_key=None`` still says that no key was set.
"""

from __future__ import annotations

import re

from logforensics import lazy_re

MASK = "***"

# Names whose value is a secret. "token" alone is far too common in an LLM server's log (#new-token, max_total_tokens): it needs an owner.
_NAME = r"""
    (?: (?:[A-Za-z0-9]+[_-])*                                        # OPENAI_, admin-, ssl_keyfile_ ...
        (?: api[_-]?key | access[_-]key(?:[_-]id)? | secret(?:[_-](?:access[_-])?key)? | private[_-]key | encryption[_-]key
          | watermark[_-]key(?:[_-]b)? | password | passwd | passphrase | credentials?
          | (?:hf|hub|hugging[_-]?face|auth|access|bearer|api|secret|refresh|session|github|gh|gitlab|wandb|modelscope|ms|ray)[_-]token )
      | (?<=--)token )
"""
_IS_SECRET = lazy_re.compile(_NAME.replace("(?<=--)token", "token"), re.IGNORECASE | re.VERBOSE)

# name=value, name: value, 'name': 'value', --name value, --name=value, ['--name', 'value']
_ASSIGNED = lazy_re.compile(
    rf"""
    (?P<head>
        (?<![A-Za-z0-9_-]) (?P<dashes>--)? {_NAME} (?![A-Za-z0-9_-])
        (?: \\? ["'] )?                                              # the quote that closes a quoted name
        (?: \s* [=:] \s* | (?(dashes) ,? \s+ (?:\\\r?\n\s*)? | (?!) ) )
    )
    (?: (?P<quote> \\? ["'] ) (?P<quoted> (?: (?! (?P=quote) ) (?: \\. | [^\\\n] ) )* ) (?P<close> (?P=quote) )?   # a cut line has no end
      | (?P<bare> [^\s,;'"(){{}}\[\]\\&|<>]+ ) )
    """,
    re.IGNORECASE | re.VERBOSE,
)

# Values that give themselves away wherever they stand.
_SHAPES = lazy_re.compile(
    r"""
    (?P<keep> \bbearer\s+ | :// [^\s/:@'"]+ : ) (?P<value> (?!\*\*\*) (?: (?<=:) [^\s/@'"]+ (?=@) | (?<=\s) [A-Za-z0-9._~+/=-]{6,} ) )
  | (?<![A-Za-z0-9_-]) (?:
        hf_ (?= (?-i: [a-z]* [A-Z0-9] ) ) [A-Za-z0-9]{8,} (?![_A-Za-z0-9])    # hf_transformers is a module, no token
      | sk- (?= [A-Za-z_-]* [0-9] ) [A-Za-z0-9_-]{12,}
      | gh[pousr]_ [A-Za-z0-9]{20,} | github_pat_ [A-Za-z0-9_]{20,} | glpat- [A-Za-z0-9_-]{16,} | xox[abprs]- [A-Za-z0-9-]{10,}
      | nvapi- [A-Za-z0-9_-]{16,} | (?-i:AKIA) [A-Z0-9]{16} | eyJ [A-Za-z0-9_-]{8,} \. eyJ [A-Za-z0-9_-]{8,} \. [A-Za-z0-9_-]{8,} )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Text without any of these holds nothing for the expressions above, which take milliseconds to compile and longer to fail.
_HINTS = (
    "apikey", "_key", "-key", "secret", "passw", "passphrase", "credential", "_token", "-token",
    "bearer", "://", "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "nvapi-", "akia", "eyj",
)  # fmt: skip
_HARMLESS = frozenset({"", "none", "null", "nil", "true", "false", "optional", "str", "str | none", "-"})


def is_secret(name: str) -> bool:
    """True where a flag (``--api-key``), an environment variable (``HF_TOKEN``) or a field (``api_key``) holds a secret."""
    return _IS_SECRET.fullmatch(name.lstrip("-")) is not None


def mask(text: str) -> str:
    """The text with every API key, token and password replaced by ``***``; names, quotes and everything else stay."""
    folded = text.casefold()
    return _masked(text) if any(hint in folded for hint in _HINTS) else text


def _masked(text: str) -> str:
    return _SHAPES.sub(lambda m: f"{m['keep'] or ''}{MASK}", _ASSIGNED.sub(_without_value, text))


def _without_value(found: re.Match[str]) -> str:
    value = found["bare"] if found["quoted"] is None else found["quoted"]
    if value.lower() in _HARMLESS or value.startswith(("$", "--")):
        return found[0]
    return f"{found['head']}{found['quote'] or ''}{MASK}{found['close'] or ''}"
