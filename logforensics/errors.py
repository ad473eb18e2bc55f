"""Every error the package raises on purpose.

A message says what was wrong, where (``file:line`` where there is a line), and what to do about it.
"""

from __future__ import annotations


class LogforensicsError(Exception):
    """Base of all errors raised by this package."""


class InputError(LogforensicsError):
    """The given file, stream or text cannot be used: missing, a folder, binary, empty, or not an SGLang log."""


class EmptyError(InputError):
    """There is nothing in the given file or stream."""


class PatternError(LogforensicsError):
    """A pattern pack in ``patterns/`` is malformed; the message points at the file and the pattern."""


class RuleError(LogforensicsError):
    """A rule of one's own (``--rules DIR``) is malformed; the message points at the file and the line."""


class CommandError(LogforensicsError):
    """A launch command cannot be read."""


class SizeError(LogforensicsError):
    """A memory size such as ``449GB`` or ``96GiB`` cannot be read."""


class UnknownCodeError(LogforensicsError):
    """``explain`` was asked for a finding code or topic that does not exist."""
