"""The server of the live page: uvicorn on a port of this machine, until a signal ends it."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from ludus.report.live.app import LivePage
from ludus.report.live.auth import SECURITY_HEADERS, Access
from ludus.report.live.connection import MAX_HEAD_BYTES, Connection
from ludus.types import LudusError

PORTS = range(8642, 8652)
"""Tried one after the other when none is given."""
BACKLOG = 64
SHUTDOWN_SECONDS = 3


class Server:
    """Serves the runs of one folder on sockets that listen already."""

    def __init__(self, folder: Path, host: str, listeners: list[socket.socket]):
        """Prepare the page; clients wait until `start`."""
        self.page = LivePage(folder)
        self.access = Access(host, listeners[0].getsockname()[1])
        self._listeners = listeners
        self._uvicorn = uvicorn.Server(_config(self.page, self.access))
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to answer."""
        warming_up = asyncio.to_thread(self.page.warm_up)
        self._tasks = [asyncio.create_task(work) for work in (self._uvicorn.serve(self._listeners), warming_up)]

    async def close(self) -> None:
        """End every connection and listen no more."""
        self._uvicorn.should_exit = True
        await asyncio.gather(*self._tasks)


def _config(page: LivePage, access: Access) -> uvicorn.Config:
    return uvicorn.Config(
        page.application(access),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        headers=list(SECURITY_HEADERS.items()),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


async def listen(folder: Path, host: str, port: int | None) -> Server:
    """Start a server on a port, or on the first free one of `PORTS`; LudusError if there is none."""
    for candidate in [port] if port is not None else PORTS:
        try:
            listeners = _bind(host, candidate)
        except OSError as error:
            if port is not None or not _is_taken(error):
                option = "port" if _is_taken(error) else "host"
                value = candidate if option == "port" else host
                raise LudusError(
                    f"--{option}={value}: cannot be listened on ({_reason(error)}); give another"
                ) from error
        else:
            server = Server(folder, host, listeners)
            await server.start()
            return server
    raise LudusError(f"no port from {PORTS[0]} to {PORTS[-1]} is free; give one with --port")


def _bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host: `localhost` has two."""
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            number = listeners[0].getsockname()[1] if listeners else port  # the same one, if any free one is wanted
            listeners.append(socket.create_server((address[0], number), family=family, backlog=BACKLOG))
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


async def watch(folder: Path, host: str, port: int | None, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `say` is given the address of the page."""
    server = await listen(folder, host, port)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again when it has shut down; with a handler of the loop that ends nothing more.
        with contextlib.suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    say(server.access.address)
    try:
        await ended.wait()
    finally:
        await server.close()
