"""Google Drive, version 3, in memory and on loopback, with the ways of the real one.

Several files may have one name; lists are late; uploads are resumable, with 308 after each part; tokens expire; 403,
429 and 5xx come with and without Retry-After; a shared drive is there only for who says that it supports them. `plan`
is asked about every request and returns a fault or None.
"""

import base64
import hashlib
import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

FOLDER = "application/vnd.google-apps.folder"
ROOT, SHARED = "ROOT", "0ASharedDrive"
PART = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Drive:
    """The server and all that it holds."""

    def __init__(self, plan: Callable[[str, str], str | None] = lambda method, path: None, lag: float = 0.0):
        self.plan, self.lag, self.lock = plan, lag, threading.RLock()
        self.files: dict[str, dict[str, Any]] = {}
        self.sessions: dict[str, dict[str, Any]] = {}
        self.given_ids: set[str] = set()
        self.tokens: set[str] = set()
        self.refreshed = self.requests = 0
        self.undeletable = False
        handler = type("Bound", (Handler,), {"drive": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def token_file(self, path: Path) -> Path:
        """Write an OAuth token file whose token has expired already."""
        said = {"token": "old", "refresh_token": "r3fresh-s3cret", "client_id": "me", "client_secret": "s3cret-of-mine"}
        path.write_text(json.dumps(said | {"token_uri": f"{self.uri}/token"}))
        return path

    def key_file(self, path: Path) -> Path:
        """Write the key file of a service account."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
        said = {"type": "service_account", "client_email": "robot@example.org", "private_key": pem}
        path.write_text(json.dumps(said | {"token_uri": f"{self.uri}/token"}))
        return path

    def add(self, name: str, parent: str, content: bytes | None = None, id: str | None = None) -> dict[str, Any]:
        """Put a file, or a folder, there."""
        with self.lock:
            made = {"id": id or uuid.uuid4().hex, "name": name, "parents": [parent], "trashed": False}
            made |= {"createdTime": time.time(), "content": content, "seen_from": time.monotonic() + self.lag}
            made["mimeType"] = FOLDER if content is None else "application/octet-stream"
            self.files[made["id"]] = made
            return made

    def below(self, folder: str) -> dict[str, list[bytes]]:
        """Return the contents of files by their paths below a folder; several have one path if they have one name."""
        with self.lock:
            found: dict[str, list[bytes]] = {}
            for file in self.files.values():
                if file["content"] is not None and not file["trashed"] and (path := self._path(file)) is not None:
                    found.setdefault(path, []).append(file["content"])
        return {path.removeprefix(f"{folder}/"): x for path, x in found.items() if path.startswith(f"{folder}/")}

    def _path(self, file: dict[str, Any]) -> str | None:
        names = [file["name"]]
        while (parent := file["parents"][0]) not in (ROOT, SHARED):
            if parent not in self.files:
                return None
            file = self.files[parent]
            names.append(file["name"])
        return "/".join(reversed(names))


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    drive: Drive
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Or every answer, which is written in two pieces, waits 40 ms for the client to confirm the first."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  the names that http.server asks for

    def _handle(self) -> None:
        place = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(place.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault, self.is_lost = None, False
        with self.drive.lock:
            self.drive.requests += 1
            if place.path != "/token":
                fault = self.drive.plan(self.command, self.path)
        self.keep = len(body)
        if fault == "cut":
            return self._hang_up()
        if fault in ("403", "429", "500", "503", "429 wait", "400"):
            return self._fail(
                int(fault[:3]), "rateLimitExceeded" if fault[0] == "4" else "backendError", int("wait" in fault)
            )
        if fault == "token expires":
            self.drive.tokens.clear()
        if fault == "keeps half" and self.command == "PUT":
            self.keep = len(body) // 2
        self.is_corrupt = fault == "keeps other bytes"
        if place.path == "/token":
            return self._token()
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.drive.tokens:
            return self._fail(401, "authError")
        self.is_lost = fault == "is lost"
        with self.drive.lock:
            self._route(place.path, body)

    def _route(self, path: str, body: bytes) -> None:
        if path.startswith("/upload/session/"):
            return self._part(path.rpartition("/")[2], body)
        if path.startswith("/upload/drive/v3/files"):
            return self._upload(path.removeprefix("/upload/drive/v3/files").strip("/"), body)
        id = path.removeprefix("/drive/v3/files").strip("/")
        if id == "generateIds":
            ids = [uuid.uuid4().hex for _ in range(int(self.query.get("count", 10)))]
            self.drive.given_ids.update(ids)
            return self._answer({"ids": ids})
        if self.command == "POST":
            return self._create(json.loads(body), None)
        if not id:
            return self._list()
        return self._on_file(id, body)

    def _on_file(self, id: str, body: bytes) -> None:
        file = self.drive.files.get(id)
        if file is None or not self._sees(file):
            return self._fail(404, "notFound")
        if self.command == "DELETE":
            if self.drive.undeletable:
                return self._fail(403, "insufficientFilePermissions")
            del self.drive.files[id]
            return self._answer(None, 204)
        if self.command == "PATCH":
            file |= json.loads(body)
        if self.query.get("alt") == "media":
            return self._content(file["content"])
        return self._answer(_shown(file))

    def _sees(self, file: dict[str, Any]) -> bool:
        """Whether a file of a shared drive is asked for by someone who says that they support them."""
        while file["parents"][0] in self.drive.files:
            file = self.drive.files[file["parents"][0]]
        return file["parents"][0] != SHARED or self.query.get("supportsAllDrives") == "true"

    def _list(self) -> None:
        parent = re.match(r"'([^']+)' in parents and trashed = false", self.query["q"])[1]
        parent = ROOT if parent == "root" else parent
        if parent not in (ROOT, SHARED) and parent not in self.drive.files:
            return self._fail(404, "notFound")
        now = time.monotonic()
        found = [x for x in self.drive.files.values() if x["parents"] == [parent] and not x["trashed"]]
        found = [x for x in found if x["seen_from"] <= now and self._sees(x)]
        found.sort(key=lambda x: x["createdTime"])
        begin, count = int(self.query.get("pageToken", 0)), min(7, int(self.query.get("pageSize", 100)))
        page = {"files": [_shown(x) for x in found[begin : begin + count]]}
        if begin + count < len(found):
            page["nextPageToken"] = str(begin + count)
        self._answer(page)

    def _create(self, said: dict[str, Any], content: bytes | None) -> None:
        id, parent = said.get("id"), said.get("parents", ["root"])[0]
        parent = ROOT if parent == "root" else parent
        if id in self.drive.files:
            return self._fail(409, "fileIdInUse")
        if id is not None and id not in self.drive.given_ids:
            return self._fail(400, "invalid")
        if parent not in (ROOT, SHARED) and parent not in self.drive.files:
            return self._fail(404, "notFound")
        if said.get("mimeType") != FOLDER and content is None:
            content = b""
        made = self.drive.add(said["name"], parent, content, id)
        if not self._sees(made):
            del self.drive.files[made["id"]]
            return self._fail(404, "notFound")
        return self._answer(_shown(made))

    def _upload(self, id: str, body: bytes) -> None:
        if id and id not in self.drive.files:
            return self._fail(404, "notFound")
        if self.query["uploadType"] == "resumable":
            session = uuid.uuid4().hex
            size = int(self.headers["X-Upload-Content-Length"])
            self.drive.sessions[session] = {"id": id, "said": json.loads(body or b"{}"), "size": size, "data": b""}
            return self._answer(
                None, 200, {"Location": f"{self.drive.uri}/upload/session/{session}?{urlsplit(self.path).query}"}
            )
        if self.query["uploadType"] == "media":
            said, content = {}, body
        else:
            said, content = _parts(self.headers["Content-Type"], body)
        return self._store(id, said, content)

    def _store(self, id: str, said: dict[str, Any], content: bytes) -> None:
        if self.is_corrupt and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        if not id:
            return self._create(said, content)
        self.drive.files[id]["content"] = content
        return self._answer(_shown(self.drive.files[id]))

    def _part(self, name: str, body: bytes) -> None:
        session = self.drive.sessions.get(name)
        if session is None:
            return self._fail(404, "notFound")
        if found := PART.match(self.headers.get("Content-Range", "")):
            if int(found[1]) != len(session["data"]):
                return self._fail(400, "invalid")
            session["data"] += body[: self.keep]
            if self.keep < len(body):  # the connection was cut in the midst
                return self._hang_up()
        if len(session["data"]) == session["size"]:
            del self.drive.sessions[name]
            return self._store(session["id"], session["said"], session["data"])
        have = {"Range": f"bytes=0-{len(session['data']) - 1}"} if session["data"] else {}
        return self._answer(None, 308, have)

    def _token(self) -> None:
        self.drive.refreshed += 1
        token = uuid.uuid4().hex
        self.drive.tokens.add(token)
        self._answer({"access_token": token, "expires_in": 3600, "token_type": "Bearer"})

    def _content(self, content: bytes) -> None:
        found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not found:
            return self._send(200, content)
        begin, end = int(found[1]), min(int(found[2] or len(content) - 1), len(content) - 1)
        if begin >= len(content):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        return self._send(206, content[begin : end + 1], {"Content-Range": f"bytes {begin}-{end}/{len(content)}"})

    def _fail(self, status: int, reason: str, wait: int = 0) -> None:
        said = {"error": {"code": status, "message": f"{reason}!", "errors": [{"reason": reason}]}}
        self._send(status, json.dumps(said).encode(), {"Retry-After": str(wait)} if wait else {})

    def _answer(self, said: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        if self.is_lost:
            return self._hang_up()
        self._send(status, b"" if said is None else json.dumps(said).encode(), headers)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(data)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True


def _parts(kind: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what an upload in one request says, and its content."""
    boundary = re.search(r'boundary="?([^";]+)', kind)[1].encode()
    _, first, second, _ = body.split(b"--" + boundary)
    end = b"\r\n" if first.startswith(b"\r\n") else b"\n"
    head, _, content = second.partition(2 * end)
    content = content.removesuffix(end)
    if b"base64" in head.lower():
        content = base64.b64decode(content)
    return json.loads(first.partition(2 * end)[2]), content


def _shown(file: dict[str, Any]) -> dict[str, Any]:
    shown = {name: file[name] for name in ("id", "name", "mimeType", "parents", "trashed")}
    shown["createdTime"] = f"{file['createdTime']:.3f}"
    if file["content"] is not None:
        shown["size"] = str(len(file["content"]))
        shown["md5Checksum"] = hashlib.md5(file["content"], usedforsecurity=False).hexdigest()
        shown["sha256Checksum"] = hashlib.sha256(file["content"]).hexdigest()
    return shown
