"""The verdict in words: not comparable, no significant difference, or which run is better, by how much and through what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from logforensics.comparison.model import Difference, EqualLoad, Outcome, PrefillSpeed, Side, Verdict
from logforensics.comparison.samples import FEW

NOISE = 0.03
"""Starts with the same flags on the same machines differ by 2 to 3 % at equal load (docs/howto/compare.md)."""
_SAME_LIMIT = 0.01
_NEAR_LIMIT = 0.9
_MAIN_SHARE = 0.7  # of the logarithm of the ratio: what is named as the way a difference comes about
_CAPACITY = ("kv_tokens", "full_pool_tokens", "swa_pool_tokens", "mamba_slots", "max_running_requests")
_NOUNS = {
    "kv_tokens": "KV tokens",
    "full_pool_tokens": "tokens in the full-attention pool",
    "swa_pool_tokens": "tokens in the sliding-window pool",
    "mamba_slots": "recurrent-state slots",
    "max_running_requests": "running requests",
}


def judge(a: Side, b: Side, load: EqualLoad | None, prefill: PrefillSpeed | None, differences: Sequence[Difference]) -> Verdict:
    """Baseline ``a`` against candidate ``b``."""
    verdict = _judged(a, b, load, prefill, differences)
    models = [PurePath(str(side.settings["model_path"].value)).name if "model_path" in side.settings else "" for side in (a, b)]
    if all(models) and models[0] != models[1]:
        other = f"the models differ ({models[0]} and {models[1]}): a token is not the same work in both"
        verdict = replace(verdict, reasons=(other, *verdict.reasons))
    return verdict


def _judged(a: Side, b: Side, load: EqualLoad | None, prefill: PrefillSpeed | None, differences: Sequence[Difference]) -> Verdict:
    stopped = [side for side in (a, b) if not side.served and side.stage != "capacity" and side.verdict in ("failed", "degraded")]
    if stopped and not (load or _capacity_changes(a, b)):
        reasons = tuple(
            f"{side.name} stopped at {side.stage.replace('_', ' ')}" + (f" ({side.finding})" if side.finding else "") for side in stopped
        )
        return _not_comparable(f"{_names(stopped)} never served", reasons)
    width = _width(a, b)
    if load is not None and (load.matched != "saturation" or width is None):
        return _speed(a, b, load, (*_remarks(a, b, prefill, load), *_caveats(width)), differences)
    single = _single(differences)
    if width is not None and (load is not None or single is None):
        return _not_comparable(width, (*_caused(a, b, differences), *_capacity_words(a, b, skip="max_running_requests")))
    if min(a.samples.height, b.samples.height) >= FEW:
        return _no_common_load(a, b)
    return _capacity(a, b, differences)


# ------------------------------------------------------------------------------------------------------- speed


def _speed(a: Side, b: Side, load: EqualLoad, remarks: tuple[str, ...], differences: Sequence[Difference]) -> Verdict:
    size = abs(load.ratio - 1)
    uncertain = load.interval is not None and not load.interval.excludes_one
    if size < NOISE or uncertain:
        return Verdict(
            Outcome.NO_DIFFERENCE, None, f"no significant difference in speed: {_told(load)}", (_noise(load, uncertain=uncertain), *remarks)
        )
    faster = b if load.ratio > 1 else a
    outcome = Outcome.BETTER if faster is b else Outcome.WORSE
    reasons = (_through(load), *_caused(a, b, differences), *remarks)
    return Verdict(outcome, faster.name, f"{b.name} is {'faster' if faster is b else 'slower'} than {a.name}: {_told(load)}", reasons)


def _told(load: EqualLoad) -> str:
    where = {
        "running and tokens": f"at equal load ({_range(load.running)} running, contexts alike)",
        "running": f"at equal load ({_range(load.running)} running)",
        "saturation": "with both at their limit and requests waiting",
    }[load.matched]
    band = f" (95 % interval {_percent(load.interval.low)} to {_percent(load.interval.high)})" if load.interval else ""
    return f"{_percent(load.ratio)}{band} {where}: {load.throughput[0]:,.1f} against {load.throughput[1]:,.1f} token/s"


def _noise(load: EqualLoad, *, uncertain: bool) -> str:
    if uncertain and load.interval and max(load.interval.high - 1, 1 - load.interval.low) > NOISE:
        return "the interval holds zero: the logs are too short or too uneven to tell the two apart"
    return f"less than {100 * NOISE:.0f} % is what two starts of one configuration may differ by"


def _through(load: EqualLoad) -> str:
    """Throughput = running × accepted length × steps/s: which of the three carries the difference."""
    parts = {
        "the number of running requests": (load.running, ("{:,.1f}", "")),
        "acceptance": ((load.accept[0] or 1.0, load.accept[1] or 1.0), ("{:.4g}", " tokens a step")),
        "step time": (load.steps, ("{:.2f}", " steps/s per request")),
    }
    total = math.log(load.ratio)
    shares = {name: math.log(pair[1] / pair[0]) / total for name, (pair, _) in parts.items()}
    told = {name: f"{name} ({form[0].format(pair[0])} → {form[0].format(pair[1])}{form[1]})" for name, (pair, form) in parts.items()}
    main = max(shares, key=lambda name: shares[name])
    if shares[main] >= _MAIN_SHARE:
        against = [name for name in parts if name != main and (shares[name] < 0 or name == "step time") and load.accept[0] is not None]
        return f"through {told[main]}" + (f", not {told[against[-1]]}" if against else "")
    return "through " + " and ".join(told[name] for name in parts if shares[name] >= (1 - _MAIN_SHARE) / 2)


def _remarks(a: Side, b: Side, prefill: PrefillSpeed | None, load: EqualLoad) -> tuple[str, ...]:
    """What else the logs say, a sentence each."""
    found = list(_capacity_words(a, b))
    if load.matched == "running" and load.tokens[0] and load.tokens[1] and abs(load.tokens[1] / load.tokens[0] - 1) > _SAME_LIMIT:
        found.append(f"contexts are not alike: {load.tokens[0]:,.0f} against {load.tokens[1]:,.0f} tokens in use (median)")
    if load.matched == "saturation":
        found.append(
            f"no batch size is common to both ({_spread(a)} against {_spread(b)} running), so each is measured with its own pool full"
        )
    if load.interval is None:
        found.append(f"only {load.lines[0]} and {load.lines[1]} decode lines: no interval can be given")
    if prefill is not None and prefill.interval is not None:
        same = abs(prefill.ratio - 1) < NOISE or not prefill.interval.excludes_one
        told = "no significant difference" if same else _percent(prefill.ratio)
        found.append(f"prefill: {told} (95 % interval {_percent(prefill.interval.low)} to {_percent(prefill.interval.high)})")
    found += [f"{side.name} has {side.value('errors'):.0f} errors" for side in (a, b) if side.value("errors")]
    return tuple(found)


def _spread(side: Side) -> str:
    """Running requests between warm-up and tail."""
    import polars as pl

    running = sorted(side.samples.filter(pl.col("core"))["running"])
    return f"{running[0]}–{running[-1]}" if running else "nothing"


def _caused(a: Side, b: Side, differences: Sequence[Difference]) -> tuple[str, ...]:
    """What the settings say about the reason."""
    moved = [item for item in differences if item.matters]
    if not moved and not (a.settings and b.settings):
        return ("the logs do not show their settings, so they cannot say what made the difference",)
    if not moved:
        return ("no logged setting differs: the reason is outside the logs",)
    if len(moved) == 1:
        first, last = moved[0].values[0], moved[0].values[-1]
        return (f"the only logged difference is {moved[0].flag}: {_word(first)} → {_word(last)}",)
    names = ", ".join(item.flag for item in moved[:6]) + (", …" if len(moved) > 6 else "")
    return (f"{len(moved)} settings differ, so the logs alone do not say which one did it: {names}",)


def _single(differences: Sequence[Difference]) -> Difference | None:
    moved = [item for item in differences if item.matters]
    return moved[0] if len(moved) == 1 else None


# ------------------------------------------------------------------------------------------------------- limits


def _width(a: Side, b: Side) -> str | None:
    """Why the runs cannot be compared at one concurrency, where the effective limits differ and one of them was met (or nobody knows)."""
    limits = a.value("max_running_requests"), b.value("max_running_requests")
    if limits[0] is None or limits[1] is None or abs(limits[1] / limits[0] - 1) <= _SAME_LIMIT:
        return None
    narrow, wide = (a, b) if limits[0] < limits[1] else (b, a)
    least, most = min(limits[0], limits[1]), max(limits[0], limits[1])
    schedulers = max(1.0, narrow.value("schedulers") or 1.0)
    seen = [side.value("running_max") for side in (a, b)]
    if all(value is not None for value in seen) and max(value or 0.0 for value in seen) < _NEAR_LIMIT * least / schedulers:
        return None
    return (
        f"at concurrency {most:,.0f} {narrow.name} runs {least:,.0f} wide with {most - least:,.0f} queued, {wide.name} runs all "
        f"(effective max_running_requests {limits[0]:,.0f} against {limits[1]:,.0f})"
    )


def _caveats(width: str | None) -> tuple[str, ...]:
    return (f"not comparable beyond the narrower limit: {width}",) if width else ()


def _not_comparable(why: str, reasons: tuple[str, ...]) -> Verdict:
    return Verdict(Outcome.NOT_COMPARABLE, None, f"not comparable, because {why}", reasons)


def _no_common_load(a: Side, b: Side) -> Verdict:
    why = f"the loads do not meet: {_spread(a)} running in {a.name}, {_spread(b)} in {b.name}, and not both kept requests waiting"
    return _not_comparable(why, _capacity_words(a, b))


def _capacity_changes(a: Side, b: Side) -> dict[str, float]:
    """Ratios of the capacity figures that both logs give."""
    pairs = {key: (a.value(key), b.value(key)) for key in _CAPACITY}
    return {key: one / other for key, (other, one) in pairs.items() if one and other}


def _capacity_words(a: Side, b: Side, skip: str = "") -> tuple[str, ...]:
    return tuple(
        f"{_NOUNS[key]}: {a.value(key):,.0f} → {b.value(key):,.0f} ({_change(ratio)})"
        for key, ratio in _capacity_changes(a, b).items()
        if abs(ratio - 1) > _SAME_LIMIT and key != skip
    )


def _capacity(a: Side, b: Side, differences: Sequence[Difference]) -> Verdict:
    """No speed to compare: what the pools and limits say."""
    ratios = _capacity_changes(a, b)
    moved = {key: ratio for key, ratio in ratios.items() if abs(ratio - 1) > _SAME_LIMIT}
    words = _capacity_words(a, b)
    if not ratios:
        return Verdict(Outcome.UNDECIDED, None, f"{_no_speed(a, b)} and no limits to compare", _caused(a, b, differences))
    if not moved:
        return Verdict(Outcome.NO_DIFFERENCE, None, f"no significant difference in capacity; {_no_speed(a, b)} to compare speed by", ())
    more, less = [key for key in moved if moved[key] > 1], [key for key in moved if moved[key] < 1]
    if more and less:
        return _trade(b, moved, more, less, words + _caused(a, b, differences))
    better = b if more else a
    outcome = Outcome.BETTER if better is b else Outcome.WORSE
    gain = " and ".join(f"{_change(moved[key])} {_NOUNS[key]}" for key in moved)
    return Verdict(
        outcome,
        better.name,
        f"{better.name} holds more: {b.name} has {gain}; {_no_speed(a, b)} to compare speed by",
        words + _caused(a, b, differences),
    )


def _no_speed(a: Side, b: Side) -> str:
    """Why there is no speed to compare."""
    some = all(side.value("decode_lines") for side in (a, b))
    return "too few decode lines without a prefill or a pause before them" if some else "no decode lines"


def _trade(b: Side, moved: dict[str, float], more: list[str], less: list[str], reasons: tuple[str, ...]) -> Verdict:
    gives = " and ".join(f"{100 * (1 - moved[key]):.0f} % of the {_NOUNS[key]}" for key in less)
    takes = " and ".join(f"{_change(moved[key])} {_NOUNS[key]}" for key in more)
    use: tuple[str, ...] = ()
    if "swa_pool_tokens" in more and "full_pool_tokens" in less:
        # a prefix can only be taken up again where its last window is still cached
        use = (
            "more windows stay cached, so returning sessions find their prefix: better for few very long sessions, worse for many tokens at once",
        )
    return Verdict(Outcome.TRADE_OFF, None, f"a trade: {b.name} gives up {gives} for {takes}", (*use, *reasons))


# ------------------------------------------------------------------------------------------------------- words


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def _change(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio >= 2 else _percent(ratio)


def _range(running: tuple[float, float]) -> str:
    low, high = sorted(running)
    return f"{low:,.0f}" if round(low) == round(high) else f"{low:,.0f}–{high:,.0f}"


def _names(sides: Sequence[Side]) -> str:
    return " and ".join(side.name for side in sides)


def _word(value: object) -> str:
    return "not set" if value is None else str(value)
