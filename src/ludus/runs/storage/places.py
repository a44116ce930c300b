"""The places that a URL can name, and the store that goes there."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from ludus.runs.storage.base import RemoteStore
from ludus.runs.storage.fsspec_store import FsspecStore
from ludus.runs.storage.mounted import MountedFolder
from ludus.runs.storage.options import check_url, scheme_of


def opened(url: str, key_file: str | None = None) -> RemoteStore:
    """Return the store of a place; LudusError for an unknown scheme, or without library or credentials."""
    check_url(url)
    scheme = scheme_of(url)
    if scheme == "gdrive":
        from ludus.runs.storage.google_drive import GoogleDrive

        return GoogleDrive(url, key_file)
    if scheme in (None, "file"):
        return MountedFolder(Path(unquote(urlsplit(url).path) if scheme else url))
    return FsspecStore(url, key_file)


def joined(folder: str, name: str) -> str:
    """Return the path of a name in a folder; the place itself is the folder without a name."""
    return f"{folder}/{name}" if folder else name
