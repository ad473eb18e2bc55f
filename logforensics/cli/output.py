"""Where text goes: a file, or standard output with what it can show."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from logforensics.errors import LogforensicsError
from logforensics.render.screen import Detail, Screen

if TYPE_CHECKING:
    from pathlib import Path


def screen(*, no_color: bool, detail: Detail = Detail.NORMAL, to_file: bool = False) -> Screen:
    """What standard output can show: 80 columns and no colour unless it is a terminal that says otherwise."""
    if to_file:
        return Screen(detail=detail)
    columns = shutil.get_terminal_size((80, 24)).columns
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "").replace("_", "")
    return Screen(
        width=columns, color=not no_color and _color_wanted(), ascii_only=not encoding.startswith(("utf", "gb18030")), detail=detail
    )


def _color_wanted() -> bool:
    """The usual agreements: NO_COLOR, FORCE_COLOR, TERM=dumb, and whether it is a terminal at all."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def emit(text: str, output: Path | None = None) -> None:
    """Write to the file, or to standard output; a reader that has left (``| head``) is no error."""
    if output is not None:
        from logforensics.render.files import write_text

        write_text(output, text)
        return
    encoded = text.encode(sys.stdout.encoding or "ascii", "backslashreplace")
    try:
        sys.stdout.write(encoded.decode(sys.stdout.encoding or "ascii"))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more when it ends, and would complain: let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise LogforensicsError(f"cannot write to standard output: {error.strerror or error}") from error


def say(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    from logforensics.render.untrusted import visible

    line = visible(" ".join(f"logforensics: {message}".split()))
    sys.stderr.write(line.encode(sys.stderr.encoding or "ascii", "backslashreplace").decode(sys.stderr.encoding or "ascii") + "\n")
