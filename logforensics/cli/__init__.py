"""The command line: arguments → API → render → exit status. One module per command.

Nothing here imports polars, rich or regex before a command runs: ``--help`` must not pay for them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import typer
from typer.main import get_command

from logforensics.cli import config
from logforensics.cli.options import CANNOT_USE, INTERRUPTED, Version, examples
from logforensics.errors import LogforensicsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main"]

# one module of this folder each, in the order of --help
COMMANDS = (
    "diagnose", "preflight", "watch", "compare", "runs", "report", "collect", "frames", "sql", "export", "flags", "models", "gpus", "demo",
    "explain", "whatif",
)  # fmt: skip
_GROUPS = ("patterns",)

# typer carries its own copy of click since 0.26, so the class cannot be imported under one name for all supported versions.
_ClickError: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def _app(names: Sequence[str]) -> typer.Typer:
    """The program with the named commands: importing and describing those that nobody asked for takes longer than typer itself."""
    app = typer.Typer(
        name="logforensics",
        help="Diagnose an SGLang server from its log: what went wrong, the lines that prove it, and the corrected launch command.",
        epilog=examples(
            "logforensics diagnose server.log",
            "logforensics diagnose server.log --host-ram 449GB",
            "docker logs my-server 2>&1 | logforensics diagnose -",
            "logforensics demo",
        ),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_without_command)
    for name in names:
        module = import_module(f"logforensics.cli.{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(name, epilog=module.EPILOG, context_settings=getattr(module, "CONTEXT", None))(module.run)
    return app


def _without_command(context: typer.Context, *, version: Version = False) -> None:
    """Diagnose an SGLang server from its log: what went wrong, the lines that prove it, and the corrected launch command."""
    del version  # its callback has printed it and left
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise LogforensicsError("no command was given; the usual one is: logforensics diagnose server.log")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; whatever goes wrong is said in one line on standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        defaults = config.defaults(given, COMMANDS)
        asked = given[:1] if given and given[0] in COMMANDS else (*COMMANDS, *_GROUPS)
        status = get_command(_app(asked)).main(given, prog_name="logforensics", standalone_mode=False, default_map=defaults)
    except LogforensicsError as error:
        return _refuse(str(error))
    except _ClickError as error:
        return _refuse(_usage(error, given))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else CANNOT_USE
    except BaseException as error:  # noqa: BLE001 (a panic inside polars is no Exception; a person at 3 a.m. gets one line all the same)
        return _confess(error)
    return status if isinstance(status, int) else 0


def _refuse(message: str) -> int:
    from logforensics.cli.output import say

    say(message)
    return CANNOT_USE


def _usage(error: BaseException, given: list[str]) -> str:
    """The message of a usage error and where to read more; a log named without a command gets the command."""
    from pathlib import Path

    context = getattr(error, "ctx", None)
    message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    if given and context is not None and context.parent is None and Path(given[0]).exists():
        return f"{given[0]} is a file, not a command; try: logforensics diagnose {given[0]}"
    path = context.command_path if context is not None else "logforensics"
    return f"{message}; see {path} --help"


def _confess(error: BaseException) -> int:
    """A bug of ours, in one line; the traceback only for those who ask."""
    if os.environ.get("LOGFORENSICS_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    return _refuse(
        f"this is a bug in logforensics: {type(error).__name__}: {error}; please report it with the traceback "
        "that LOGFORENSICS_DEBUG=1 prints and, if you can, the log"
    )
