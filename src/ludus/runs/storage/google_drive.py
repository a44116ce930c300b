"""Google Drive, by its official client: `gdrive://Folder/below`, or `gdrive://id:FOLDER_ID/below`.

Drive has no paths: a file is an id with a name in a folder, many may have one name, and a list of them may be late. So
ids are remembered, a name that is there is updated and never made a second time, and the id of a new file is asked
for beforehand: whoever must ask again to create it cannot create two. The second form reaches shared drives, and
folders that were shared with a service account, which has no room of its own.
"""

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ludus.runs.storage.base import PART, PIECE, LocalFile, MissingError, StorageError, Told
from ludus.runs.storage.drive_tree import FOLDER_TYPE, DriveTree, File
from ludus.runs.trackers.mlflow.redaction import redacted
from ludus.types import LudusError

TOKEN_URI = "https://oauth2.googleapis.com/token"
SCOPES = ("https://www.googleapis.com/auth/drive",)
ENDPOINT = "LUDUS_GDRIVE_ENDPOINT"
"""Variable with another address than Google's, for tests."""
FILE_TYPE = "application/octet-stream"
FIELDS = "id,name,mimeType,size,md5Checksum,sha256Checksum,createdTime"
SECONDS = 30.0
"""How long an answer is waited for."""
TRIES = 5
"""How often an upload is taken up again where it was cut, without having come further."""
PATIENCE = 10.0
"""The longest that is waited inside an upload; whoever copies waits longer."""
NEW_IDS = 100

Answer = TypeVar("Answer")


class GoogleDrive:
    """A folder of Google Drive."""

    def __init__(self, url: str, key_file: str | None):
        """Read the credentials; LudusError if there are none. Nothing is sent yet."""
        self.name = url.rstrip("/")
        self._credentials = _credentials(url, _key_file(url, key_file))
        self._local, self._lock = threading.local(), threading.Lock()
        self._connections: list[Any] = []
        self._service()
        root, *below = [name for name in url.partition("://")[2].split("/") if name]
        is_id = root.startswith("id:")
        start = root.removeprefix("id:") if is_id else "root"
        self._tree = DriveTree(start, below if is_id else [root, *below], self._listed, self._created_folder)
        self._ids: list[str] = []

    def put(self, path: str, source: LocalFile) -> None:
        """Update the file of that name, or create it; others of that name are removed."""
        folder, name = self._tree.place(path, is_made=True)
        known = self._tree.files(folder, name)
        try:
            made = self._sent(known[0]["id"], None, source) if known else self._created(folder, name, source)
        except MissingError:  # somebody has removed it
            self._tree.drop(known[0]["id"])
            made = self._created(folder, name, source)
        for other in known:
            if other["id"] != made["id"]:
                self._delete(other["id"])
        self._tree.note(folder, made)

    def _created(self, folder: str, name: str, source: LocalFile) -> File:
        body = {"id": self._new_id(), "name": name, "parents": [folder]}
        try:
            return self._sent(None, body, source)
        except StorageError as error:
            if not _has_status(error, 409):
                raise
            return self._sent(body["id"], None, source)  # it was created, though we were not told

    def _sent(self, id: str | None, body: dict[str, Any] | None, source: LocalFile) -> File:
        """Send the content of a file, in parts that are taken up where they were cut."""
        is_long = source.size > PART
        media = _media(source, is_long)
        calls, options = self._service().files(), {"media_body": media, "fields": FIELDS, "supportsAllDrives": True}
        request = calls.update(fileId=id, **options) if id else calls.create(body=body, **options)
        return self._in_parts(request) if is_long else self._asked(request.execute)

    def _in_parts(self, request: Any) -> File:
        tries, reached = 0, -1
        while True:
            try:
                _, made = self._asked(request.next_chunk)
                if made is not None:
                    return made
            except StorageError as error:
                if request.resumable_progress > reached:
                    tries, reached = 0, request.resumable_progress
                tries += 1
                wait = max(error.wait, 0.1 * 2**tries)
                if tries > TRIES or wait > PATIENCE or isinstance(error, MissingError) or _has_status(error, 409):
                    raise
                time.sleep(wait)

    def told(self, path: str) -> Told:
        """Return size and hashes, which Drive makes of the bytes it holds."""
        file = self._file(path)
        said = self._asked(
            self._service().files().get(fileId=file["id"], fields=FIELDS, supportsAllDrives=True).execute
        )
        hashes = {"sha256": said.get("sha256Checksum"), "md5": said.get("md5Checksum")}
        return Told(int(said.get("size", -1)), {name: value for name, value in hashes.items() if value})

    def pieces(self, path: str, sha256: str | None = None) -> Iterator[bytes]:
        """Read a file; of several with one name that with this hash."""
        from googleapiclient.http import MediaIoBaseDownload

        request = self._service().files().get_media(fileId=self._file(path, sha256)["id"], supportsAllDrives=True)
        buffer, is_over = io.BytesIO(), False
        load = MediaIoBaseDownload(buffer, request, chunksize=PART)
        while not is_over:
            is_over = self._asked(load.next_chunk)[1]
            data = buffer.getvalue()
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))
            buffer.seek(0)
            buffer.truncate()

    def names(self, folder: str) -> list[str]:
        """List a folder anew."""
        self._tree.forget()
        try:
            return self._tree.names(folder)
        except MissingError:
            return []

    def remove(self, path: str) -> None:
        """Remove all files of that name."""
        try:
            folder, name = self._tree.place(path)
        except MissingError:
            return
        for file in self._tree.files(folder, name):
            self._delete(file["id"])

    def _delete(self, id: str) -> None:
        """Delete a file; who may not, puts it into the bin."""
        self._tree.drop(id)
        calls = self._service().files()
        try:
            self._asked(calls.delete(fileId=id, supportsAllDrives=True).execute)
        except MissingError:
            return
        except StorageError as error:
            if not _has_status(error, 403) or error.wait:
                raise
            self._asked(calls.update(fileId=id, body={"trashed": True}, supportsAllDrives=True).execute)

    def _file(self, path: str, sha256: str | None = None) -> File:
        """Return a file by its path; what is not known to be there is looked for anew."""
        for attempt in range(2):
            folder, name = self._tree.place(path)
            if found := self._tree.files(folder, name):
                return next((file for file in found if file.get("sha256Checksum") == sha256), found[0])
            if attempt == 0:
                self._tree.forget(folder)
        raise MissingError(f"{self.name}/{path}: is not there")

    def _created_folder(self, parent: str, name: str) -> File:
        body = {"id": self._new_id(), "name": name, "parents": [parent], "mimeType": FOLDER_TYPE}
        create = self._service().files().create(body=body, fields=FIELDS, supportsAllDrives=True)
        try:
            return self._asked(create.execute)
        except StorageError as error:
            if not _has_status(error, 409):
                raise
            return body  # the client asked twice: httplib2 does when a connection ends without an answer

    def _listed(self, folder: str) -> list[File]:
        found: list[File] = []
        options: dict[str, Any] = {
            "q": f"'{folder}' in parents and trashed = false",
            "fields": f"nextPageToken,files({FIELDS})",
            "orderBy": "createdTime",
            "pageSize": 1000,
            "supportsAllDrives": True,
            "includeItemsFromAllDrives": True,
        }
        while True:
            page = self._asked(self._service().files().list(**options).execute)
            found += page["files"]
            if not page.get("nextPageToken"):
                return found
            options["pageToken"] = page["nextPageToken"]

    def _new_id(self) -> str:
        with self._lock:
            if not self._ids:
                self._ids = self._asked(self._service().files().generateIds(count=NEW_IDS).execute)["ids"]
            return self._ids.pop()

    def _service(self) -> Any:
        """Return the client of this thread: its connection is for one thread alone."""
        if not hasattr(self._local, "service"):
            self._local.service, http = _client(self._credentials)
            self._local.http = http
            self._connections.append(http)
        return self._local.service

    def _hang_up(self) -> None:
        if hasattr(self._local, "service"):
            self._local.http.close()
            del self._local.service

    def close(self) -> None:
        """Close all connections."""
        for http in self._connections:
            http.close()

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """Ask; errors become ours."""
        from google.auth.exceptions import GoogleAuthError
        from googleapiclient.errors import Error, HttpError, ResumableUploadError
        from httplib2 import HttpLib2Error

        try:
            return question()
        except (HttpError, ResumableUploadError) as error:
            raise _answered(self.name, error) from error
        except GoogleAuthError as error:
            raise StorageError(f"{self.name}: the credentials are refused ({redacted(str(error))})") from error
        except (Error, HttpLib2Error, OSError, EOFError, ValueError, KeyError) as error:
            self._hang_up()  # the connection may be of no more use
            raise StorageError(f"{self.name}: {redacted(str(error)) or type(error).__name__}") from error
        except Exception as error:
            if type(error).__module__ != "http.client":
                raise
            self._hang_up()
            raise StorageError(f"{self.name}: the connection was cut ({type(error).__name__})") from error


def _media(source: LocalFile, is_long: bool) -> Any:
    """Return a source as the content of an upload."""
    from googleapiclient.http import MediaIoBaseUpload

    class MediaParts(MediaIoBaseUpload):
        def has_stream(self) -> bool:
            return False  # a stream that was read cannot be sent again, when a token expires or a connection is cut

    return MediaParts(_Stream(source), FILE_TYPE, chunksize=PART, resumable=is_long)


class _Stream(io.RawIOBase):
    """A source as the client reads it."""

    def __init__(self, source: LocalFile):
        self._source, self._at = source, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._source.size - self._at)
        data = self._source.read(self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        return data


def _answered(name: str, error: Any) -> StorageError:
    """Return what an answer of Drive that is no success means."""
    status = int(error.resp.status)
    text, reason = f"error {status}", ""
    try:
        said = json.loads(error.content)["error"]
        text = f"{text}: {redacted(str(said['message']))}"
        reason = str((said.get("errors") or [{}])[0].get("reason", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        pass
    wait = str(error.resp.get("retry-after", ""))
    is_too_fast = status == 429 or (status == 403 and "ateLimit" in reason)
    seconds = float(wait) if wait.isdecimal() else float(is_too_fast)
    kind = MissingError if status in (404, 410) else StorageError
    made = kind(f"{name}: {text}", wait=min(seconds, 300.0))
    made.add_note(f"status {status}")
    return made


def _has_status(error: StorageError, status: int) -> bool:
    return f"status {status}" in getattr(error, "__notes__", [])


def _key_file(url: str, key_file: str | None) -> Path:
    """Return the file with the credentials; LudusError if none is named or the client is not installed."""
    try:
        import googleapiclient  # noqa: F401
    except ImportError as error:
        raise LudusError(
            f'storage.url={url}: the Google client is not installed; pip install "ludus[gdrive]"'
        ) from error
    if not url.partition("://")[2].strip("/"):
        raise LudusError(f"storage.url={url}: names no folder, as in gdrive://Folder or gdrive://id:FOLDER_ID")
    named = key_file or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not named:
        raise LudusError(
            f"storage.url={url}: no credentials; set GOOGLE_APPLICATION_CREDENTIALS or storage.key_file to the "
            "JSON file of a service account or of an OAuth token"
        )
    return Path(named)


def _client(credentials: Any) -> tuple[Any, Any]:
    """Return a client of Drive, version 3, made from the description that is installed with it, and its connection."""
    import google_auth_httplib2
    import httplib2
    from googleapiclient.discovery import build_from_document
    from googleapiclient.discovery_cache import get_static_doc

    plain = httplib2.Http(timeout=SECONDS)
    plain.redirect_codes = plain.redirect_codes - {308}  # Drive's word for a part that arrived
    http = google_auth_httplib2.AuthorizedHttp(credentials, http=plain)
    description = get_static_doc("drive", "v3")
    if endpoint := os.environ.get(ENDPOINT):
        description = json.dumps({**json.loads(description), "rootUrl": f"{endpoint.rstrip('/')}/"})
    return build_from_document(description, http=http), http


def _credentials(url: str, file: Path) -> Any:
    from google.oauth2 import credentials, service_account

    try:
        said = json.loads(file.read_bytes())
        if said.get("type") == "service_account":
            return service_account.Credentials.from_service_account_info(said, scopes=SCOPES)
        names = ("refresh_token", "client_id", "client_secret")
        known = {name: str(said[name]) for name in names} | {"token_uri": str(said.get("token_uri", TOKEN_URI))}
        return credentials.Credentials(said.get("token"), **known)
    except OSError as error:
        raise LudusError(f"storage.url={url}: no credentials ({file}: {error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # not repeated: it may hold a part of the key
        raise LudusError(
            f"storage.url={url}: no credentials ({file} holds neither a service account nor an OAuth token)"
        ) from error
