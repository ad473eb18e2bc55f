"""A launch command: reading what people paste, rebuilding one from logged server_args, and rewriting one with changes applied."""

from __future__ import annotations

from logforensics.command.model import LaunchCommand, Place
from logforensics.command.reader import read_command
from logforensics.command.rebuild import from_server_args
from logforensics.command.rewrite import rewrite

__all__ = ["LaunchCommand", "Place", "from_server_args", "read_command", "rewrite"]
