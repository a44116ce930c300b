"""The limits on connections that uvicorn does not have by itself.

uvicorn waits without end for the head of a request and for the reader of an answer, and at its own limit
(`limit_concurrency`) it refuses every new connection, the owner's too. Here a request must come soon, an answer must be
taken soon, and a new connection takes the place of the oldest one that has not shown the token.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ludus.report.live.auth import SECURITY_HEADERS

REQUEST_SECONDS, ANSWER_SECONDS, CLOSING_SECONDS = 5.0, 20.0, 1.0
"""For a whole request; for reading an answer; for the streams of open pages to end when the server ends."""
MAX_STRANGERS = 64
"""Connections without the token."""
MAX_HEAD_BYTES, MAX_LINES = 1 << 18, 128
"""Of a request. Other servers on this machine may have set many cookies, but a browser sends them in one line, and
thousands of lines would take the parser long."""

_numbers = itertools.count()


class Connection(H11Protocol):
    """One connection and its limits. A request finds the connection it came by in `request.state.connection`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        """Take what uvicorn gives to each connection."""
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        self.number = next(_numbers)
        self.has_token = self.is_stream = False
        self._closing = asyncio.Event()
        self._lines = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for a request, and close the oldest connections of strangers if there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # then `pause_writing` is called whenever the client does not read
        self._limit(REQUEST_SECONDS, self._refuse_slow_request)
        strangers = [each for each in self.connections if isinstance(each, Connection) and not each.has_token]
        for stranger in sorted(strangers, key=lambda each: each.number)[:-MAX_STRANGERS]:
            stranger.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass data on to the parser, but not too many lines."""
        self._lines += data.count(b"\n")
        if self._lines > MAX_LINES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "there are too many headers")
        else:
            super().data_received(data)

    def count_streams(self) -> int:
        """Return how many connections of the server are open pages."""
        return sum(each.is_stream for each in self.connections if isinstance(each, Connection))

    def request_received(self) -> None:
        """Wait no longer: the whole request is here."""
        self._unlimit()

    def pause_writing(self) -> None:
        """Give the client some time to read what was sent."""
        super().pause_writing()
        self._limit(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the client has read everything."""
        super().resume_writing()
        self._unlimit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._unlimit()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End when the server ends: an open page as soon as it has heard it, any other answer at once."""
        self._closing.set()
        self.loop.call_later(CLOSING_SECONDS if self.is_stream else 0.0, self.transport.abort)

    async def is_closing_within(self, seconds: float) -> bool:
        """Wait for so long, or until the server ends; return whether it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        return self._closing.is_set()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, "this is no HTTP request")

    def _refuse_slow_request(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer a request that does not reach the application, with the headers that its answers have."""
        if self.cycle is not None and self.cycle.response_started:
            self.transport.abort()
            return
        body = f"{reason}\n".encode()
        headers = {**SECURITY_HEADERS, "Content-Type": "text/plain; charset=utf-8", "Content-Length": len(body)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode() + body)
        self.transport.close()

    def _limit(self, seconds: float, action: Callable[[], None]) -> None:
        self._unlimit()
        self._timer = self.loop.call_later(seconds, action)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
