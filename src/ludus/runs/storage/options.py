"""The settings of storage: where copies of a run go, and how much of it at what pace."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ludus.types import LudusError

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)


@dataclass(frozen=True)
class StorageOptions:
    """The place that a run is copied to while it trains."""

    url: str | None = None
    """Copy runs there: gdrive://Folder, s3://bucket/prefix, gs://..., other fsspec URLs, a folder; null: nowhere."""
    every_seconds: float = 30.0
    """Look for something new to copy after so many seconds."""
    keep_last: int = 0
    """Keep so many of the latest checkpoints there, and the best; 0: those that the run folder keeps."""
    bandwidth: float = 0.0
    """Send at most so many bytes a second, on average; 0: no limit."""
    key_file: str | None = None
    """JSON file of a Google service account or OAuth token, not saved; null: GOOGLE_APPLICATION_CREDENTIALS."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, low in (("every_seconds", 0.0), ("keep_last", 0), ("bandwidth", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 2**53:
                raise LudusError(f"storage.{name}={value}: must be a number of at least {low:g}")
        if self.keep_last != int(self.keep_last):
            raise LudusError(f"storage.keep_last={self.keep_last}: must be an integer")
        for name in ("url", "key_file"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise LudusError(f"storage.{name}={value!r}: must be a text or null")
        if self.url is not None:
            check_url(self.url, "storage.url=")


def scheme_of(url: str) -> str | None:
    """Return the scheme of a URL in small letters; None for a path."""
    found = SCHEME.match(url)
    return found[1].lower() if found else None


def check_url(url: str, what: str = "") -> None:
    """Refuse a URL that holds a password, which a run would write down, or has no place in it."""
    if scheme_of(url) is None:
        return
    parts = urlsplit(url)
    if parts.password is not None or parts.query:
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise LudusError(
            f"{what}{place}: came with a password or query, which a run must not write down; leave it out, the "
            "library that goes there has variables and files of its own for it"
        )
    if not parts.netloc and parts.scheme != "file":
        raise LudusError(f"{what}{url}: names no place, as in {parts.scheme}://bucket/prefix")
