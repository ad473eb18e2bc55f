"""Every sample of every pattern gives what it says, and the packs are sound."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from logforensics.errors import PatternError
from logforensics.parsing import packs
from logforensics.parsing.lines import LineReader
from logforensics.parsing.patterns import Pattern, Sample

PATTERNS = packs.load_strictly().patterns
SAMPLES = [(pattern, sample) for pattern in PATTERNS for sample in pattern.samples]


@pytest.mark.parametrize(("pattern", "sample"), SAMPLES, ids=[f"{p.origin}-{n}" for n, (p, _) in enumerate(SAMPLES)])
def test_a_sample_gives_what_it_says(pattern: Pattern, sample: Sample) -> None:
    reader = LineReader()
    reader.feed(1, sample.line, known=True)
    reader.close()
    rows = [row for name, found in reader.take().items() if name == pattern.frame for row in found]

    assert len(rows) == len(sample.gives)
    for (_, _, ranks, columns), wanted in zip(rows, sample.gives, strict=True):
        given = ranks._asdict() | columns
        assert {name: given.get(name) for name in wanted} == dict(wanted)
    assert reader.tally.unknown == reader.tally.damaged == 0


def test_an_edited_pack_is_read_although_a_compiled_copy_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(packs.folder(), tmp_path / "patterns")
    monkeypatch.setattr(packs, "folder", lambda: tmp_path / "patterns")
    packs._all_tables.cache_clear()
    before = packs._packs(packs._all_tables())
    pack = tmp_path / "patterns" / "serving.toml"
    pack.write_text(pack.read_text(encoding="utf-8").replace("fired up and ready to roll", "lit and ready to go"), encoding="utf-8")
    packs._all_tables.cache_clear()

    after = packs._packs(packs._all_tables())
    again = packs._packs(json.loads((tmp_path / "patterns" / "compiled.json").read_text(encoding="utf-8"))["tables"])
    packs._all_tables.cache_clear()

    line = "The server is lit and ready to go!"
    assert before.match(line, cut=False) is None
    assert after.match(line, cut=False) is not None
    assert again == after


def test_bulk_expressions_describe_their_samples() -> None:
    import polars as pl

    from logforensics.parsing.bulk import read_bulk

    bulky = [
        (pattern, sample.line)
        for pattern, sample in SAMPLES
        if pattern.bulk and "Decode" not in sample.line and "decode" not in sample.line
    ]
    lines = pl.DataFrame({"n": range(1, len(bulky) + 1), "line": [line for _, line in bulky]}, schema={"n": pl.UInt32, "line": pl.String})

    frames, left = read_bulk(lines)

    assert sum(frame.height for found in frames.values() for frame in found) == len(bulky) - left.height
    assert left.is_empty()


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"event": "x", "frame": "memory", "head": "Load", "colour": 1}, "unknown key 'colour'"),
        ({"event": "x", "frame": "weather", "head": "Load"}, "there is no frame 'weather'"),
        ({"event": "x", "frame": "memory"}, "needs `head` or `find`"),
        ({"event": "x", "frame": "memory", "head": "Lo"}, "shorter than 4"),
        ({"event": "x", "frame": "memory", "head": "Load", "set": {"speed": 1}}, "no column 'speed'"),
    ],
)
def test_a_malformed_pattern_is_refused_with_its_place(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(PatternError, match=complaint) as caught:
        packs.compile_pattern(table, "memory.toml: pattern 7 (x)")

    assert str(caught.value).startswith("memory.toml: pattern 7 (x): ")


@pytest.mark.parametrize("literal", ["-rss:", "is dead", "a longer literal"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 6, 7, 2000])
def test_a_literal_is_found_wherever_it_stands(literal: str, length: int) -> None:
    pattern = packs.compile_pattern({"event": "x", "frame": "ready", "find": literal, "set": {"event": "x"}}, "x.toml: pattern 1 (x)")
    both = packs.combined([pattern])

    for message in ("." * length + literal, "." * length + literal + "." * length):
        assert both.match(message, cut=False) == (pattern, {"event": "x"})
    assert both.match("." * length + literal[:-1], cut=False) is None
