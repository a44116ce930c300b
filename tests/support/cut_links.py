"""A link between two processes that can be cut: no byte arrives from then on, and no connection is closed.

Where the system lets us have a network of our own, both processes run in one, and its loopback is taken down. Elsewhere
one reaches the other through a relay that stops: what they say directly to each other arrives all the same.
"""

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import NamedTuple

SET_FLAGS, IS_UP = 0x8914, 1
"""The request that sets an interface's flags, and the flag of one that works."""
WAYS = ((), ("-U", "-r"))
"""How `unshare` is asked: as root, and as somebody else."""


class Link(NamedTuple):
    """A link, and how to use it."""

    prefix: tuple[str, ...]
    """Words before the command of each process."""
    address: str
    """Where process 0 is."""
    seen: str
    """Where process 1 finds it."""
    cut: Callable[[], None]


def set_loopback(is_up: bool) -> None:
    """Take the loopback of this process's network up or down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", IS_UP if is_up else 0))


@contextlib.contextmanager
def link(port: int, *, is_relayed: bool = False) -> Generator[Link]:
    """Make a link to a process that listens at a port and the next one."""
    if not is_relayed:
        for options in WAYS:
            with _network(options) as holder:
                if holder is not None:
                    assert holder.stdin is not None
                    enter = (
                        "nsenter",
                        "-t",
                        str(holder.pid),
                        "-n",
                        *(("-U", "--preserve-credentials")[: len(options)]),
                    )
                    address = f"127.0.0.1:{port}"
                    yield Link(enter, address, address, lambda: _tell(holder))
                    return
    relays = [Relay(port), Relay(port + 1)]
    while relays[1].port != relays[0].port + 1:  # the second of them lies beside the first
        relays[0].close()
        relays[1].close()
        relays[0] = Relay(port)
        with contextlib.suppress(OSError):
            relays[1] = Relay(port + 1, relays[0].port + 1)
    try:
        yield Link((), f"127.0.0.1:{port}", f"127.0.0.1:{relays[0].port}", lambda: [x.stop() for x in relays] and None)
    finally:
        for relay in relays:
            relay.close()


@contextlib.contextmanager
def _network(options: tuple[str, ...]) -> Generator[subprocess.Popen[str] | None]:
    """Start a process that holds a network of its own, with a loopback; None where that is not allowed."""
    words = ["unshare", *options, "-n", sys.executable, __file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    try:
        holder = subprocess.Popen(words, **pipes)
    except OSError:  # there is no such command
        yield None
        return
    with holder:
        try:
            assert holder.stdout is not None
            yield holder if holder.stdout.readline() == "up\n" else None
        finally:
            holder.kill()


def _tell(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("cut\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "down\n"


class Relay:
    """Passes on what it hears, in both directions, until it is stopped."""

    def __init__(self, target: int, port: int = 0):
        """Listen at a port, or any."""
        self._target, self._server = target, socket.create_server(("127.0.0.1", port))
        self.port, self._sockets, self._is_stopped = self._server.getsockname()[1], [self._server], threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Pass on nothing more."""
        self._is_stopped.set()

    def close(self) -> None:
        """Hang up."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._server.accept()
                self._sockets.append(here)
                try:
                    there = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # nobody listens yet
                    here.close()
                    continue
                self._sockets.append(there)
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and not self._is_stopped.is_set():
                sink.sendall(data)
            if not self._is_stopped.is_set():
                sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    set_loopback(True)
    os.write(1, b"up\n")
    sys.stdin.readline()
    set_loopback(False)
    os.write(1, b"down\n")
    sys.stdin.readline()
