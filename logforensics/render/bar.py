"""The bar on a terminal while something takes long. Only a program that has been busy for a second imports this: it needs rich."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from logforensics import progress
from logforensics.render.untrusted import ascii_form, visible

_PER_SECOND = 8
_WIDE = 80  # columns; in fewer the figures need the room of the bar
_SPEED_SECONDS = 10.0  # the speed is that of the last ten seconds: a pipe may be slow at times


class Bar:
    """A line at the end of the screen that draws what ``latest`` says, again and again, and vanishes when it is closed.

    Args:
        file: the terminal.
        latest: says how far the work has come.
        no_color: draw without colours.
    """

    def __init__(self, file: TextIO, latest: Callable[[], progress.Progress], *, no_color: bool = False) -> None:
        self._console = Console(file=file, no_color=no_color or None, highlight=False, markup=False, emoji=False)
        self._lines = _Lines(latest, self._console)
        self._lines.start()
        self._console.show_cursor()  # rich hides it, and who is killed cannot bring it back

    def close(self) -> None:
        """Take the bar off the screen."""
        self._lines.stop()


_FOLDERS = re.compile(r"(?!/dev/)\S*/(?=[^/])")  # of a path, also behind a word: quoting logs/server.log.gz


class _Lines(Progress):
    def __init__(self, latest: Callable[[], progress.Progress], console: Console) -> None:
        self._latest = latest
        self._ascii_only = console.options.ascii_only
        bars = [BarColumn(bar_width=20)] if console.width >= _WIDE else []
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            TextColumn("{task.fields[counted]}", markup=False, table_column=Column(no_wrap=True)),
            *bars,
            _Figures(table_column=Column(no_wrap=True)),
            console=console, transient=True, redirect_stdout=False, redirect_stderr=False, expand=True,
            refresh_per_second=_PER_SECOND, speed_estimate_period=_SPEED_SECONDS,
        )  # fmt: skip
        self._counted = self.add_task("", visible=False, counted="")
        self._uncounted = self.add_task("", total=None, counted="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """The one line, with what is known now."""
        now = self._latest()
        if self.tasks:  # rich asks once before there is one
            is_counted = now.total_bytes is not None
            shown, hidden = (self._counted, self._uncounted) if is_counted else (self._uncounted, self._counted)
            name = _name(now.what, ascii_only=self._ascii_only)
            counted = f"{now.number} of {now.count}" if now.count > 1 else ""
            self.update(hidden, visible=False)
            self.update(shown, visible=True, description=name, counted=counted, completed=now.done_bytes, total=now.total_bytes)
        yield from super().get_renderables()


def _name(what: str, *, ascii_only: bool) -> str:
    """What is being done; a path loses its folders, since the end of a name tells more than its beginning."""
    name = visible(_FOLDERS.sub("", what))
    return ascii_form(name) if ascii_only else name


class _Figures(ProgressColumn):
    """Bytes read of all bytes, speed, time left: what is known of these."""

    def render(self, task: Task) -> Text:
        """As text, in MB (1e6 bytes)."""
        if not task.completed and task.total is None:
            return Text(_clock(task.elapsed or 0.0))
        said = [f"{task.completed / 1e6:,.1f}" + (f" of {task.total / 1e6:,.1f} MB" if task.total is not None else " MB")]
        if task.speed:
            said.append(f"{task.speed / 1e6:,.1f} MB/s")
        if task.total is not None and task.time_remaining is not None:
            said.append(f"{_clock(task.time_remaining)} left")
        return Text("  ".join(said))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
