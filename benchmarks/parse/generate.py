"""Logs for timing: the same bytes for the same arguments, line forms of releases 0.5.8 and 0.5.16, no real host, model or user."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# shares of access, decode and prefill lines; what is left is everything else a server says while it runs
MIXES = {"dense": (0.20, 0.45, 0.33), "mixed": (0.60, 0.19, 0.19), "sparse": (0.93, 0.03, 0.03)}
STYLES = ("0.5.8", "0.5.16")
_POOL = 230_378
_BEGIN = datetime(2026, 2, 18, 14, 3, 27)
_PATHS = ("/v1/chat/completions", "/v1/completions", "/generate", "/health")
_WORDS = [
    "the",
    "server",
    "said:",
    "Decode batch, #running-req: 5,",
    "then",
    "[2026-01-01 00:00:00]",
    "and",
    "0.5",
    "tokens,",
    "été",
    "模型",
]


def write(path: Path, size: int, *, mix: str = "mixed", ranks: int = 1, style: str = "0.5.8", seed: int = 1) -> None:
    """Write about ``size`` bytes of a server that starts and then serves."""
    written = 0
    with path.open("w", encoding="utf-8") as log:
        for block in _Server(mix, ranks, style, seed).lines():
            written += log.write(block)
            if written >= size:
                return


class _Server:
    def __init__(self, mix: str, ranks: int, style: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shares = MIXES[mix]
        self.tags = [" TP0"] if ranks == 1 else [f" DP{n} TP{n}" for n in range(ranks)]
        self.closing = ", " if style == "0.5.8" else ""
        self.newer = style != "0.5.8"
        self.second = 0
        self.count = 0
        self.running, self.used, self.queue = 40, 60_000, 0

    def lines(self) -> Iterator[str]:
        yield from self._start()
        access, decode, prefill = self.shares
        while True:
            self.count += 1
            self.second += self.count % 40 == 0
            draw = self.chance.random()
            if draw < access:
                yield self._access()
            elif draw < access + decode:
                yield self._decode()
            elif draw < access + decode + prefill:
                yield self._prefill()
            else:
                yield self.chance.choice(self._others())()

    def _stamp(self, tag: str = "") -> str:
        return f"[{_BEGIN + timedelta(seconds=self.second):%Y-%m-%d %H:%M:%S}{tag}] "

    def _start(self) -> Iterator[str]:
        options = ", ".join(f"option_{n}={self.chance.choice(['None', 'False', '0.3', '8192'])}" for n in range(200))
        yield f"{self._stamp()}server_args=ServerArgs(model_path='/models/m', tp_size=8, mem_fraction_static=0.9, {options})\n"
        for tag in self.tags:
            yield f"{self._stamp(tag)}Load weight begin. avail mem=93.40 GB\n"
            yield f"{self._stamp(tag)}Load weight end. type=M, dtype=torch.bfloat16, avail mem=25.10 GB, mem usage=68.30 GB.\n"
            yield f"{self._stamp(tag)}KV Cache is allocated. #tokens: {_POOL}, KV size: 15.08 GB\n"
        yield f"{self._stamp()}The server is fired up and ready to roll!\n"

    def _access(self) -> str:
        status = "200 OK" if self.chance.random() < 0.99 else "503 Service Unavailable"
        port = 32_768 + int(self.chance.random() * 28_000)
        return f'{self._stamp()}INFO:     127.0.0.1:{port} - "POST {self.chance.choice(_PATHS)} HTTP/1.1" {status}\n'

    def _tag(self) -> str:
        return self.tags[self.count % len(self.tags)]

    def _decode(self) -> str:
        self.running = max(1, min(512, self.running + self.chance.randint(-4, 4)))
        self.used = max(100, min(_POOL, self.used + self.chance.randint(-1000, 1000)))
        self.queue = max(0, self.queue + self.chance.randint(-2, 2))
        speed = self.running * (15 + self.chance.random() * 5)
        return (
            f"{self._stamp(self._tag())}Decode batch, #running-req: {self.running}, #token: {self.used}, token usage: {self.used / _POOL:.2f}, "
            f"cuda graph: {self.running < 256}, gen throughput (token/s): {speed:.2f}, #queue-req: {self.queue}{self.closing}\n"
        )

    def _prefill(self) -> str:
        new = int(self.chance.random() * 8192)
        line = (
            f"{self._stamp(self._tag())}Prefill batch, #new-seq: {self.chance.randint(1, 4)}, #new-token: {new}, "
            f"#cached-token: {self.chance.randint(0, 4096)}, token usage: {self.used / _POOL:.2f}, #running-req: {self.running}, #queue-req: {self.queue}"
        )
        if self.newer:
            line += f", #pending-token: {new * 3}, cuda graph: False, input throughput (token/s): {new * 1.5:.2f}"
        return f"{line}{self.closing}\n"

    def _others(self) -> list[Callable[[], str]]:
        return [self._retraction] * 24 + [self._warning] * 12 + [self._traceback, self._traceback, self._capture, self._request]

    def _retraction(self) -> str:
        return (
            f"{self._stamp(self.tags[0])}KV cache pool is full. Retract requests. #retracted_reqs: {self.chance.randint(1, 9)}, "
            f"#new_tokens_gained: {self.chance.randint(1, 4096)}, #new_token_ratio: 0.{self.chance.randint(100, 999)} -> 0.7012\n"
        )

    def _warning(self) -> str:
        return f'{self._stamp()}WARNING: the tokenizer met "an unexpected token" at position {self.count}\n'

    def _request(self) -> str:
        text = " ".join(self.chance.choices(_WORDS, k=self.chance.randint(500, 5000)))
        return f"{self._stamp()}Receive: obj=GenerateReqInput(rid='{self.chance.getrandbits(128):032x}', text={text!r}, stream=True)\n"

    def _traceback(self) -> str:
        return (
            f"{self._stamp(self.tags[0])}Scheduler hit an exception: Traceback (most recent call last):\n"
            f'  File "/opt/sglang/scheduler.py", line {self.count % 3000}, in event_loop\n    result = self.run_batch(batch)\n'
            f'  File "/opt/sglang/model_runner.py", line 77, in forward\n    raise RuntimeError("bad value")\nRuntimeError: bad value {self.count}\n\n'
        )

    def _capture(self) -> str:
        steps = [
            f"\rCapturing batches (bs={bs} avail_mem=4.{bs:02d} GB): {100 - bs:3d}%|###   | {n}/36 [00:00<00:09,  3.1it/s]"
            for n, bs in enumerate(range(72, 0, -2))
        ]
        return "".join(steps) + "\n"
