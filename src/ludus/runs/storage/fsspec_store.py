"""Object stores and servers of every kind, by way of fsspec: s3://, gs://, abfs://, sftp:// and so on."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ludus.runs.storage.base import PART, PIECE, LocalFile, MissingError, StorageError, Told
from ludus.runs.trackers.mlflow.redaction import redacted
from ludus.types import LudusError

NOWHERE = ("file", "local", "data", "cached", "blockcache", "filecache", "simplecache", "reference", "generic", "dir")
"""Schemes of fsspec that are no place of their own; a folder has a store of its own."""
SECONDS = 20.0
"""How long an answer is waited for."""
AMAZON = {"config_kwargs": {"connect_timeout": 5, "read_timeout": SECONDS, "retries": {"max_attempts": 1}}}
GOOGLE_FILES = Path("~/.config/gcloud/application_default_credentials.json")
GOOGLE_PLAIN = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
"""A part of gcsfs that asks for the kind of a bucket, over another protocol, for a minute if it does not answer."""

OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory")
"""Schemes of places that have no folders, and where a file appears when all of it is there."""

Answer = TypeVar("Answer")


class FsspecStore:
    """A place that fsspec knows; paths are joined to the one in the URL."""

    def __init__(self, url: str, key_file: str | None):
        """Load the library; LudusError if it or its credentials are missing. Nothing is sent yet."""
        self.name = url.rstrip("/")
        self.scheme = url.partition("://")[0].lower()
        self._fs, self._root = _file_system(url, _options(self.scheme, key_file))
        self._root = self._root.rstrip("/")
        self._made: set[str] = set()
        self._making = threading.Lock()

    def put(self, path: str, source: LocalFile) -> None:
        """Send a short file in one request and a long one in parts; neither is there before it is complete."""
        self._asked(path, lambda: self._put(self._full(path), source))

    def _put(self, path: str, source: LocalFile) -> None:
        self._make_folder(path.rpartition("/")[0])
        if source.size <= PART:
            self._fs.pipe_file(path, source.read(0, source.size))
            return
        file = self._fs.open(path, "wb", block_size=PART)
        try:
            for piece in source.pieces(PART):
                file.write(piece)
        except BaseException:
            discard = getattr(file, "discard", None)
            if discard is not None:
                discard()
            file.closed = True  # or half of it would be sent now
            raise
        file.close()

    def _make_folder(self, folder: str) -> None:
        """Make a folder where there are such things; object stores have none."""
        with self._making:
            if self.scheme not in OBJECT_STORES and folder not in self._made:
                self._fs.makedirs(folder, exist_ok=True)
                self._made.add(folder)

    def told(self, path: str) -> Told:
        """Return size and hash: S3 has the MD5 of what came in one request, GCS of all but what was put together."""
        info = self._asked(path, lambda: self._fs.info(self._full(path)))
        if info.get("type") == "directory":
            raise MissingError(f"{self.name}/{path}: is a folder")
        return Told(int(info.get("size") or 0), _digests(info))

    def pieces(self, path: str, sha256: str | None = None) -> Iterator[bytes]:
        """Read a file from the store, not from a cache."""
        full = self._full(path)
        size = self.told(path).size
        for offset in range(0, size, PART):
            end = min(offset + PART, size)
            data = self._asked(path, lambda: self._fs.cat_file(full, start=offset, end=end))  # noqa: B023
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))

    def names(self, folder: str) -> list[str]:
        """List a folder anew."""
        try:
            entries = self._asked(folder, lambda: self._fs.ls(self._full(folder), detail=True))
        except MissingError:
            return []
        full = self._full(folder).strip("/")
        inside = [(entry["name"].strip("/"), entry["type"]) for entry in entries]
        return sorted(
            name.rpartition("/")[2] + "/" * (kind == "directory") for name, kind in inside if name and name != full
        )

    def remove(self, path: str) -> None:
        """Remove a file."""
        try:
            self._asked(path, lambda: self._fs.rm_file(self._full(path)))
        except MissingError:
            return

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _asked(self, path: str, question: Callable[[], Answer]) -> Answer:
        """Ask; whatever library answers, its errors become ours."""
        try:
            self._fs.invalidate_cache()
            return question()
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise MissingError(f"{self.name}/{path}: is not there ({_said(error)})") from error
        except Exception as error:  # each of these libraries has its own
            raise StorageError(f"{self.name}: {_said(error)}") from error


def _said(error: Exception) -> str:
    text = redacted(str(error))
    return text if text else type(error).__name__


def _file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise LudusError(f'storage.url={url}: fsspec is not installed; pip install "ludus[storage]"') from error
    scheme = url.partition("://")[0].lower()
    if scheme not in fsspec.available_protocols() or scheme in NOWHERE:
        raise LudusError(
            f"storage.url={url}: {scheme}:// is no scheme that is known; there are gdrive://, s3://, gs://, others of "
            "fsspec, and folders"
        )
    try:
        options |= {"use_listings_cache": False, "skip_instance_cache": True} if scheme != "memory" else {}
        return fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        extra = '; pip install "ludus[storage]"' if scheme in ("s3", "gs") else ""
        raise LudusError(f"storage.url={url}: a library is missing ({_said(error)}){extra}") from error
    except Exception as error:  # whatever the library finds wrong with it
        raise LudusError(f"storage.url={url}: cannot be used ({_said(error)})") from error


def _options(scheme: str, key_file: str | None) -> dict[str, Any]:
    """Return what a library is told besides the URL; LudusError if it would find no credentials."""
    if scheme in ("s3", "s3a"):
        _check_amazon(scheme)
        return dict(AMAZON)
    if scheme in ("gs", "gcs"):
        os.environ.setdefault(GOOGLE_PLAIN, "false")
        return _google_options(scheme, key_file)
    return {}


def _check_amazon(scheme: str) -> None:
    """Look for credentials where the library does: variables, files, and the machine's own role."""
    try:
        from botocore.session import Session
    except ImportError:
        return  # what is missing is said when the library is loaded
    try:
        found = Session().get_credentials()
    except Exception as error:  # such as a profile that does not exist
        raise LudusError(f"storage.url={scheme}://...: no credentials ({_said(error)})") from error
    if found is None:
        raise LudusError(
            f"storage.url={scheme}://...: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws "
            "configure"
        )


def _google_options(scheme: str, key_file: str | None) -> dict[str, Any]:
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return {"token": "anon"}
    file = key_file or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if file:
        if not Path(file).is_file():
            raise LudusError(f"storage.url={scheme}://...: no credentials ({file} is not a file)")
        return {"token": file}
    if GOOGLE_FILES.expanduser().is_file():
        return {"token": "google_default"}
    if _is_google_machine():
        return {"token": "cloud"}
    raise LudusError(
        f"storage.url={scheme}://...: no credentials; set GOOGLE_APPLICATION_CREDENTIALS or storage.key_file to the "
        "JSON file of a service account, or run gcloud auth application-default login"
    )


def _is_google_machine() -> bool:
    try:
        return "Google" in Path("/sys/class/dmi/id/product_name").read_text()
    except OSError:
        return False


def _digests(info: dict[str, Any]) -> dict[str, str]:
    """Return the hash that a store made of a file itself."""
    import base64
    import re

    if isinstance(info.get("md5Hash"), str):
        return {"md5": base64.b64decode(info["md5Hash"]).hex()}
    tag = str(info.get("ETag", "")).strip('"')
    return {"md5": tag} if re.fullmatch(r"[0-9a-f]{32}", tag) else {}
