"""Drawing charts without a browser: Vega-Lite to SVG, and the JavaScript that a page needs to draw them itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from logforensics.errors import LogforensicsError

if TYPE_CHECKING:
    from types import ModuleType

_IMAGE_WIDTH = 720
_PAPER: Mapping[str, Any] = {
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e4e4e4", "domainColor": "#888", "tickColor": "#888"},
}


def svg(spec: Mapping[str, Any]) -> str:
    """The chart as an SVG image on white, so that it can be read on a dark page, too."""
    text: str = _library().vegalite_to_svg({**spec, "width": _IMAGE_WIDTH, "config": _PAPER, "padding": 10})
    return text


def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script that needs no network."""
    code: str = _library().javascript_bundle()
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def inline_json(value: Any) -> str:
    """JSON that can stand in a page's script element: nothing in it can end the element or a line of JavaScript."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _library() -> ModuleType:
    try:
        import vl_convert
    except ImportError as error:
        raise LogforensicsError(
            "charts need the package vl-convert-python, which is not installed: pip install vl-convert-python"
        ) from error
    module: ModuleType = vl_convert
    return module
