"""The server of the live page: HTTP on loopback, a few routes, nothing but the standard library.

Each connection serves one request. Heads and bodies are small and must come soon, answers must be taken soon, and there
are only so many connections at once: of those that have not shown the token, a new one takes the place of the oldest:
strangers who hold theirs open shut nobody out.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import signal
import stat
import time
from collections.abc import AsyncIterator
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

from ludus.report.page import plotly_js, resource
from ludus.types import LudusError
from ludus.watch.gate import BODY_BYTES, SAFETY, WHOLE_HEAD_BYTES, Gate, Refused, Request, parse
from ludus.watch.opened import VIDEOS, Opened, newest_video
from ludus.watch.shelf import KEY, Shelf
from ludus.watch.stream import Viewer

PORTS = range(8642, 8652)
"""Tried one after the other when none is given."""
REQUEST_SECONDS, ANSWER_SECONDS = 5.0, 20.0
MOST_STRANGERS, MOST_STREAMS = 64, 16
"""Connections without the token, and pages that are open."""
PERIOD_SECONDS, HURRY_SECONDS, PING_SECONDS = 1.0, 0.05, 15.0
KEPT_SECONDS = 60.0
"""What was read of a run is kept for so long after its last viewer has gone."""
CHUNK = 1 << 18
TEXT, SCRIPT, STYLE = "text/plain; charset=utf-8", "text/javascript; charset=utf-8", "text/css; charset=utf-8"
FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}


class Server:
    """Serves the runs of one folder."""

    def __init__(self, folder: Path, host: str, port: int):
        """Listen nowhere yet."""
        self.shelf, self.gate = Shelf(folder), Gate(host, port)
        self._open: dict[str, tuple[Opened, float]] = {}
        self._streams = 0
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task] = set()
        self._strangers: dict[asyncio.Task, None] = {}
        """Connections that have not shown the token, the oldest first."""
        self._is_closing = False

    async def start(self) -> None:
        """Begin to listen; OSError if the port is taken."""
        self._listening = await asyncio.start_server(
            self._connected, self.gate.host, self.gate.port, limit=WHOLE_HEAD_BYTES, reuse_address=True, backlog=64
        )
        if self.gate.port == 0:
            port = self._listening.sockets[0].getsockname()[1]
            self.gate = Gate(self.gate.host, port)
        warming = asyncio.ensure_future(asyncio.to_thread(self._warm))
        self._tasks.add(warming)
        warming.add_done_callback(self._tasks.discard)

    def _warm(self) -> None:
        """Do now what the first page would have to wait for."""
        self.shelf.refresh()
        plotly_version()

    async def close(self) -> None:
        """End every connection and listen no more."""
        assert self._listening is not None
        self._is_closing = True
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._strangers[task] = None
        if len(self._strangers) > MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        try:
            await self._serve(task, reader, writer)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # whoever asked has gone, or is too slow
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
        finally:
            self._strangers.pop(task, None)
            self._tasks.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve(self, task: asyncio.Task, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await self._read(reader)
            self.gate.check(request)
            if self.gate.knows(request):
                self._strangers.pop(task, None)
            elif request.method != "GET" or request.path[1:] not in ("", *ASSETS):  # these are the same for everybody
                raise Refused(403, "open the address that ludus watch printed, token and all")
            await self._route(request, reader, writer)
        except Refused as refused:
            await _answer(writer, refused.status, f"{refused}\n".encode(), TEXT)

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = parse(await reader.readuntil(b"\r\n\r\n"))
                if request.length:
                    await reader.readexactly(min(request.length, BODY_BYTES))  # nothing that is asked for needs one
                return request
        except asyncio.LimitOverrunError as error:
            raise Refused(431, "the headers are too large") from error
        except TimeoutError as error:
            raise Refused(408, "the request came too slowly") from error

    async def _route(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match request.method, request.path.split("/")[1:]:
            case "GET", [""]:
                page = _resource("watch.html").replace("PLOTLY", f"plotly.js?v={plotly_version()}")
                await _answer(writer, 200, page.encode(), "text/html; charset=utf-8")
            case "GET", ["events"]:
                await self._events(request.query.get("run"), reader, writer)
            case "GET", ["runs", key, "video"] if key in self.shelf.runs:
                await _send_video(self.shelf.runs[key].path, writer)
            case "POST", ["runs", key, "stop"] if key in self.shelf.runs:
                await self._stop(key, writer)
            case "GET", [name] if name in ASSETS:
                body, kind, more = await asyncio.to_thread(asset, name)
                await _answer(writer, 200, body, kind, more)
            case _, [""] | ["events"] | ["runs", _, "video" | "stop"]:
                raise Refused(405 if request.method == "POST" else 404, "there is no such thing here")
            case _:
                raise Refused(404, "there is no such thing here")

    async def _stop(self, key: str, writer: asyncio.StreamWriter) -> None:
        try:
            said = await asyncio.to_thread(self.shelf.stop, key)
        except LudusError as error:
            raise Refused(409, str(error)) from error
        await _answer(writer, 200, said.encode(), TEXT)

    async def _events(self, key: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if key is not None and not KEY.fullmatch(key):
            raise Refused(400, "a run is named by its number")
        if self._streams >= MOST_STREAMS:
            raise Refused(503, "too many pages are open")
        self._streams += 1
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await _head(writer, 200, "text/event-stream", {"Cache-Control": "no-store"})
            async for update in self._updates(key, gone):
                writer.write(update)
                async with asyncio.timeout(ANSWER_SECONDS):
                    await writer.drain()
        finally:
            self._streams -= 1
            gone.cancel()

    async def _updates(self, key: str | None, gone: asyncio.Future) -> AsyncIterator[bytes]:
        """Yield what there is to tell until the viewer has gone."""
        viewer = Viewer(self.shelf, None)
        told = time.monotonic()
        while not gone.done():
            await asyncio.to_thread(self.shelf.refresh)
            viewer.opened = await self._opened(key)
            update = await asyncio.to_thread(viewer.update)
            if update or time.monotonic() - told > PING_SECONDS:
                told = time.monotonic()
                yield update or b": still here\n\n"
            await asyncio.wait({gone}, timeout=HURRY_SECONDS if viewer.is_behind else PERIOD_SECONDS)

    async def _opened(self, key: str | None) -> Opened | None:
        """Return a run that is known by this number, read up to now; forget those that nobody looks at."""
        now = time.monotonic()
        self._open = {name: entry for name, entry in self._open.items() if now - entry[1] < KEPT_SECONDS}
        watched = self.shelf.runs.get(key) if key else None
        if watched is None:
            return None
        opened = self._open[watched.key][0] if watched.key in self._open else Opened(watched)
        if opened.watched is not watched:  # it was gone meanwhile and is another one now
            opened = Opened(watched)
        self._open[watched.key] = opened, now
        await asyncio.to_thread(opened.refresh, self.shelf.is_asked(watched.holder))
        return opened


ASSETS = {
    "plotly.js": (lambda: plotly_js(), SCRIPT, FOREVER),
    "page.js": (lambda: f"const PANELS = [];\n{resource('page.js')}", SCRIPT, {}),
    "watch.js": (lambda: _resource("watch.js"), SCRIPT, {}),
    "style.css": (lambda: resource("page.css") + _resource("watch.css"), STYLE, {}),
}
"""Files of ours by their names; no other name leads to a file."""


@cache
def asset(name: str) -> tuple[bytes, str, dict[str, str]]:
    """Return a file of the page, its kind and headers."""
    text, kind, headers = ASSETS[name]
    return text().encode(), kind, headers


def plotly_version() -> str:
    """Return what changes when plotly.js does."""
    return hashlib.sha256(asset("plotly.js")[0]).hexdigest()[:12]


@cache
def _resource(name: str) -> str:
    return (files("ludus.watch") / name).read_text(encoding="utf-8")


async def _send_video(run: Path, writer: asyncio.StreamWriter) -> None:
    """Send the newest video."""
    video = await asyncio.to_thread(newest_video, run)
    file = await asyncio.to_thread(_open_video, run, video)
    with os.fdopen(file, "rb") as handle:
        left = os.fstat(file).st_size
        headers = {"Content-Length": str(left), "Cache-Control": "no-store"}
        await _head(writer, 200, video["kind"] if video else TEXT, headers)
        while left and (data := await asyncio.to_thread(handle.read, min(CHUNK, left))):
            left -= len(data)
            writer.write(data)
            async with asyncio.timeout(ANSWER_SECONDS):
                await writer.drain()


def _open_video(run: Path, video: dict[str, Any] | None) -> int:
    """Open a video of a run without following a link."""
    if video is None:
        raise Refused(404, "there is no video yet")
    try:
        folder = os.open(run / VIDEOS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            file = os.open(video["name"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise Refused(404, "there is no video yet") from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Refused(404, "there is no video yet")
    return file


async def _answer(
    writer: asyncio.StreamWriter, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
) -> None:
    await _head(writer, status, kind, {"Content-Length": str(len(body)), "Cache-Control": "no-store"} | (headers or {}))
    writer.write(body)
    async with asyncio.timeout(ANSWER_SECONDS):
        await writer.drain()
    writer.close()
    async with asyncio.timeout(ANSWER_SECONDS):
        await writer.wait_closed()


async def _head(writer: asyncio.StreamWriter, status: int, kind: str, headers: dict[str, str]) -> None:
    lines = SAFETY | {"Content-Type": kind, "Connection": "close"} | headers
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{text}\r\n".encode())


async def listen(folder: Path, host: str, port: int | None) -> Server:
    """Start a server on a port, or on the first one of ours that is free; LudusError if it cannot be had."""
    for candidate in [port] if port is not None else PORTS:
        server = Server(folder, host, candidate)
        try:
            await server.start()
        except OSError as error:
            if port is not None or not _is_taken(error):
                option = "port" if _is_taken(error) else "host"
                value = candidate if option == "port" else host
                raise LudusError(
                    f"--{option}={value}: cannot be listened on ({_reason(error)}); give another"
                ) from error
        else:
            return server
    raise LudusError(f"no port from {PORTS[0]} to {PORTS[-1]} is free; give one with --port")


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


async def watch(folder: Path, host: str, port: int | None, say: Any) -> None:
    """Serve until a signal ends it; `say` is told where the page is."""
    server = await listen(folder, host, port)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    say(server.gate.address)
    try:
        await ended.wait()
    finally:
        await server.close()
