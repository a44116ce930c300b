"""A live page in a thread of the test's own process, and requests to it as raw bytes."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from ludus.report.live.server import Server, listen


class Answer(NamedTuple):
    status: int
    """0 if nothing came back."""
    head: str
    body: bytes


class Serving:
    """A server and what one needs to know to ask it."""

    def __init__(self, server: Server):
        self.server, self.access, self.port = server, server.access, server.access.port

    @property
    def address(self) -> str:
        return self.access.address

    def head(self, method: str = "GET", target: str = "/", **changes: str | None) -> bytes:
        """Return the head of a request that is allowed, but for the changes; None leaves a header out."""
        host = f"127.0.0.1:{self.port}"
        headers = {"Host": host, "X-Ludus-Token": self.access.token}
        if method == "POST":
            headers |= {"Origin": f"http://{host}"}
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def ask(self, request: bytes, most: int = 1 << 24, seconds: float = 5.0) -> Answer:
        """Send bytes and return what comes back until the server hangs up, or for as long as an answer lasts."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            got = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection.sendall(request)
                while len(got) < most and (block := connection.recv(1 << 16)):
                    got += block
        head, _, body = got.partition(b"\r\n\r\n")
        words = head.split(b" ", 2)
        return Answer(int(words[1]) if len(words) > 1 else 0, head.decode("latin-1"), body)


@contextlib.contextmanager
def serving(folder: Path) -> Generator[Serving]:
    """Serve a folder meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(listen(folder, "127.0.0.1", 0), loop).result(10)
    try:
        server.page.index.refresh()
        yield Serving(server)
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
