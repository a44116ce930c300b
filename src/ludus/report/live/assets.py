"""The files of the page itself: the same for everybody, so that they need no token."""

import hashlib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ludus.report.html.page import plotly_js, resource


class Asset(NamedTuple):
    """A file of the page, and how long a browser may keep it."""

    content: bytes
    media_type: str
    cache_control: str


def _page() -> str:
    version = hashlib.sha256(asset("/plotly.js").content).hexdigest()[:12]
    return _resource("watch.html").replace("PLOTLY", f"plotly.js?v={version}")


def _resource(name: str) -> str:
    return (files("ludus.report.live") / name).read_text(encoding="utf-8")


ASSETS: dict[str, tuple[Callable[[], str], str]] = {
    "/": (_page, "text/html"),
    "/plotly.js": (plotly_js, "text/javascript"),
    "/page.js": (lambda: f"const PANELS = [];\n{resource('page.js')}", "text/javascript"),
    "/watch.js": (lambda: _resource("watch.js"), "text/javascript"),
    "/ask.js": (lambda: _resource("ask.js"), "text/javascript"),
    "/style.css": (lambda: resource("page.css") + _resource("watch.css"), "text/css"),
}
"""By path; no other path leads to a file of the package."""


@cache
def asset(path: str) -> Asset:
    """Return a file of the page."""
    text, media_type = ASSETS[path]
    is_versioned = path == "/plotly.js"  # the page asks for it with its version, so that a new one is another file
    return Asset(text().encode(), media_type, "private, max-age=31536000, immutable" if is_versioned else "no-store")
