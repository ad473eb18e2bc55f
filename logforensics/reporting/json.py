"""A report for programs: schema ``logforensics.report/1``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from logforensics.render.json import diagnosis_to_dict
from logforensics.reporting.model import SCHEMA, Chart, Report


def report_to_dict(report: Report) -> dict[str, Any]:
    """The report as plain JSON values; charts give their data, not how they are drawn."""
    return {
        "schema": SCHEMA,
        "title": report.title,
        "anonymized": report.anonymized,
        "impact": list(report.impact),
        "timeline": [asdict(moment) for moment in report.timeline],
        "settings": [asdict(setting) for setting in report.settings],
        "foresight": [asdict(item) for item in report.foresight],
        "advice": list(report.advice),
        "charts": [_chart(chart) for chart in report.charts],
        "versions": dict(report.versions),
        "diagnosis": diagnosis_to_dict(report.diagnosis),
    }


def report_to_json(report: Report) -> str:
    """The JSON text in ASCII, ending in a newline."""
    return json.dumps(report_to_dict(report), indent=2, allow_nan=False) + "\n"


def _chart(chart: Chart) -> dict[str, Any]:
    header, *rows = chart.figures
    return {
        "key": chart.key,
        "title": chart.title,
        "caption": chart.caption,
        "figures": [dict(zip(header, row, strict=True)) for row in rows],
        "points": chart.spec["data"]["values"],
    }
