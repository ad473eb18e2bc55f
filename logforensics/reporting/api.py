"""Writing a report to a file."""

from __future__ import annotations

import os
from pathlib import Path

from logforensics import progress
from logforensics.engine import Log
from logforensics.errors import LogforensicsError
from logforensics.hardware import Hardware
from logforensics.render.files import write_text, write_texts
from logforensics.reporting.build import build_report
from logforensics.reporting.model import Report

FORMS = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".json": "json"}


def report(
    log: Log,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    anonymize: bool = False,
    hardware: Hardware | None = None,
    launch_command: str | None = None,
    version: str | None = None,
    model_config: str | os.PathLike[str] | None = None,
    rules: str | os.PathLike[str] | None = None,
    patterns: str | os.PathLike[str] | None = None,
) -> tuple[Path, ...]:
    """Write a post-mortem that a team can publish; the file's name says in which form: .md, .html or .json.

    Args:
        log: a path, several paths, ``-`` for standard input, or a log that :func:`logforensics.parse` has read.
        path: the file to write; Markdown gets its charts as SVG files beside it.
        title: the report's title.
        anonymize: replace hosts, users, paths and model names, each always by the same word.
        hardware: what is known of the machine; see :func:`logforensics.diagnose` for this and the rest.
        launch_command: the command the server was started with.
        version: the SGLang release.
        model_config: a Hugging Face ``config.json``.
        rules: a folder of rules of one's own.
        patterns: a folder of pattern packs of one's own.

    Returns:
        The files written, the report first.

    Raises:
        LogforensicsError: the name has another ending, or a file cannot be written.
        InputError: the log cannot be read or is not SGLang's.
    """
    target = Path(path)
    form = form_of(target)
    told = build_report(
        log,
        title=title,
        anonymize=anonymize,
        hardware=hardware,
        launch_command=launch_command,
        version=version,
        model_config=model_config,
        rules=rules,
        patterns=patterns,
    )
    progress.now("writing the report")
    return write_report(told, target, form)


def form_of(path: Path) -> str:
    """The form that a file's name asks for.

    Raises:
        LogforensicsError: it asks for none.
    """
    form = FORMS.get(path.suffix.lower())
    if form is None:
        raise LogforensicsError(f"cannot tell the form of the report from the name {path}: let it end in .html, .md or .json")
    return form


def write_report(told: Report, path: Path, form: str) -> tuple[Path, ...]:
    """Write a report in one of the forms; the files written, the report first."""
    if form == "json":
        from logforensics.reporting.json import report_to_json

        write_text(path, report_to_json(told))
        return (path,)
    if form == "html":
        from logforensics.reporting.html import report_to_html

        write_text(path, report_to_html(told))
        return (path,)
    return _write_markdown(told, path)


def _write_markdown(told: Report, path: Path) -> tuple[Path, ...]:
    from logforensics.reporting.drawing import svg
    from logforensics.reporting.markdown import report_to_markdown

    images = {chart.key: f"{path.stem}-{chart.key}.svg" for chart in told.charts}
    texts = {path: report_to_markdown(told, images, path.parent)}
    texts |= {path.with_name(images[chart.key]): svg(chart.spec) for chart in told.charts}
    write_texts(texts)
    return tuple(texts)
