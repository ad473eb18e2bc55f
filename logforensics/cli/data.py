"""Where data goes that is no text: a file, or standard output as it is."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from logforensics.errors import LogforensicsError

if TYPE_CHECKING:
    from pathlib import Path

_PARQUET = b"PAR1"


def emit_bytes(content: bytes, output: Path | None = None) -> None:
    """Write to the file, whole or not at all, or to standard output; a reader that has left (``| head``) is no error.

    Raises:
        LogforensicsError: the file cannot be written, or a terminal would be sent binary data.
    """
    if output is not None:
        from logforensics.render.files import replacing

        with replacing(output) as temporary:
            temporary.write_bytes(content)
        return
    if content.startswith(_PARQUET) and sys.stdout.isatty():
        raise LogforensicsError("parquet is no text for a terminal: name a file with -o, or send it to another program")
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain: let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise LogforensicsError(f"cannot write to standard output: {error.strerror or error}") from error
