"""What the stories in fixtures/ cannot say: every signature reads its samples and no other table takes them; arithmetic at its edges."""

from __future__ import annotations

import pytest

from logforensics.errors import PatternError
from logforensics.rules import all_rules, layout, signatures
from logforensics.run.model import Mark, Rank
from logforensics.run.troubles import Trouble

SAMPLES = [(signature, sample) for signature in signatures.signatures() for sample in signature.samples]
DECIDED_BY_RULES = {"elsewhere", "port_taken", "memory_unbalanced"}  # one sentence, several root causes: a rule computes which


def said(text: str, frames: list[list[object]] | None = None) -> Trouble:
    places = tuple((str(name), int(str(line)), str(function)) for name, line, function in frames or [])
    return Trouble("exception", "Error", (text,), Mark("server.log", 1), 1, 1, Rank(), frames=places)


@pytest.mark.parametrize(("signature", "sample"), SAMPLES, ids=[f"{s.cause}-{s.name}-{n}" for n, (s, _) in enumerate(SAMPLES)])
def test_sample(signature: signatures.Signature, sample: dict[str, object]) -> None:
    hit = signatures.claim(said(str(sample["text"]), sample.get("frames")))  # type: ignore[arg-type]
    assert hit is not None
    assert hit.signature is signature, f"claimed by {hit.signature.cause} {hit.signature.name}"
    gives = sample.get("gives", {})
    assert isinstance(gives, dict)
    assert {name: hit.groups.get(name) for name in gives} == gives


@pytest.mark.parametrize("signature", [s for s in signatures.signatures() if s.cause != "elsewhere"], ids=lambda s: f"{s.cause}-{s.name}")
def test_every_signature_belongs_to_a_rule(signature: signatures.Signature) -> None:
    assert signature.cause in {rule.root_cause for rule in all_rules()} | DECIDED_BY_RULES


@pytest.mark.parametrize(
    "text",
    [
        "Ignore import error when loading sglang.srt.models.quux: No module named 'vllm'",
        "No chat template found, defaulting to 'string' content format",
        "Warning: User-specified context_length (9) is greater than the derived context_length (8).",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.1 -> 0.2",
        "Received sigquit from a child process. It usually means the child failed.",
        "The server is fired up and ready to roll!",
    ],
)
def test_harmless_lines_are_claimed_by_nobody(text: str) -> None:
    assert signatures.claim(said(text)) is None


@pytest.mark.parametrize(
    ("template", "groups", "text"),
    [
        ("a {x}", {"x": "1"}, "a 1"),
        ("a {x}", {}, None),
        ("a {x} || b", {}, "b"),
        ("a {x} || b {y}", {"y": "2"}, "b 2"),
        ("plain", {}, "plain"),
    ],
)
def test_filled(template: str, groups: dict[str, str], text: str | None) -> None:
    assert signatures.filled(template, groups) == text


def test_a_malformed_table_names_file_and_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_rows", lambda: iter([("x.toml: signature 3 (quux)", {"cause": "a", "name": "quux", "finds": "b"})]))
    signatures.signatures.cache_clear()
    try:
        with pytest.raises(PatternError, match=r"x\.toml: signature 3 \(quux\): unknown key 'finds'"):
            signatures.signatures()
    finally:
        signatures.signatures.cache_clear()


@pytest.mark.parametrize(("numerator", "ranks", "size"), [(16, 6, 4), (28, 8, 4), (40, 16, 8), (25, 8, 5), (7, 2, 1), (12, 8, 4)])
def test_the_largest_size_that_divides(numerator: int, ranks: int, size: int) -> None:
    assert layout.largest_dividing(numerator, ranks) == size
