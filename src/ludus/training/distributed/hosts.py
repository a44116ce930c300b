"""Several processes that train together, on one machine or many: how they find each other, and what they tell.

All run the same command; process 0 leads. It alone evaluates, writes the run folder and decides what comes next; the
others do what it tells them (`follower.py`), so that every compiled program is begun by all of them alike. JAX's own
collectives carry the numbers; a connection beside them carries commands and a sign of life each second. Where a
process dies, is stopped, hangs or is cut off, a collective would wait for ever: so all others end, and say from which
checkpoint the run goes on.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Literal

from ludus.training.distributed.seats import HostOptions, Seat, seat_of
from ludus.types import LudusError

LOST = 75
"""Exit code of a process that ends because another one is lost."""
BEAT_SECONDS = 1.0
MOST_BYTES = 1 << 20
"""A longer message is none of ours."""


class Peer:
    """Another process, at the other end of a connection."""

    def __init__(self, number: int, connection: socket.socket):
        """Begin with a process that was heard of just now."""
        self.number, self._connection, self.last = number, connection, time.monotonic()
        self._file, self._lock = connection.makefile("rb"), threading.Lock()

    def send(self, **message: Any) -> None:
        """Send a message; one that does not arrive is found out by whoever listens."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Wait for a message; None if there will be no more."""
        try:
            message = json.loads(self._file.readline(MOST_BYTES))
        except (OSError, ValueError):
            self._file.close()
            self._connection.close()
            return None
        self.last = time.monotonic()
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """Say and hear no more: whoever waits for a message will get none."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Team:
    """The processes that train together, as one of them sees them: the leader all others, each of these the leader."""

    def __init__(self, seat: Seat, options: HostOptions, peers: list[Peer]):
        """Begin to listen and to give signs of life."""
        self.seat, self.timeout, self.peers = seat, options.timeout, peers
        self._limit = max(options.timeout, options.patience)  # the first step connects, which is a part of the start
        self.saved: Callable[[], str] = lambda: self._told_saved
        """Tells how the run goes on: only the leader knows by itself."""
        self._told_saved = "from its last checkpoint"
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._is_over, self._longest, self._since = threading.Event(), 0.0, None
        self._awake = time.monotonic()
        for peer in peers:
            threading.Thread(target=self._listen, args=(peer,), daemon=True).start()
        threading.Thread(target=self._live, daemon=True).start()

    @property
    def is_leader(self) -> bool:
        """Whether this is process 0."""
        return self.seat.number == 0

    def tell(self, what: str, **more: Any) -> None:
        """Let all others do something that this process is about to do."""
        for peer in self.peers:
            peer.send(do=what, **more)

    def next_command(self) -> dict[str, Any]:
        """Wait for what the leader says is to be done."""
        return self._commands.get()

    @contextlib.contextmanager
    def step(self) -> Generator[None]:
        """Watch over something that all do together: if it takes far too long, somebody hangs."""
        self._since = time.monotonic()
        try:
            yield
        except Exception:
            self._is_over.wait(3 * BEAT_SECONDS)  # if it is for the loss of another, that is what is said
            raise
        finally:
            self._longest, self._since = max(self._longest, time.monotonic() - self._since), None
            # Later than the silence of a process that was stopped within this step: that says more.
            self._limit = max(self.timeout + 3 * BEAT_SECONDS, 10 * self._longest)

    def pass_on(self, number: int, _: object = None) -> None:
        """Let the leader hear of a signal that came here: it saves, and ends the run for all."""
        self.tell("signal", number=int(number))

    def end(self, code: int) -> None:
        """Let all others end."""
        self._is_over.set()
        self.tell("end", code=code)

    def close(self) -> None:
        """Hear no more of the others."""
        self._is_over.set()
        for peer in self.peers:
            peer.close()

    def _listen(self, peer: Peer) -> None:
        while (message := peer.receive()) is not None:
            what = message.get("do")
            if what == "live" and isinstance(message.get("saved"), str):
                self._told_saved = message["saved"]
            elif what == "signal" and self.is_leader:
                os.kill(os.getpid(), signal.Signals(message["number"]))
            elif what == "end":
                self._is_over.set()
            if what not in ("live", "signal"):
                self._commands.put(message)
        if not self._is_over.is_set():
            self._give_up(f"process {peer.number} has ended or is cut off")

    def _live(self) -> None:
        while not self._is_over.wait(BEAT_SECONDS):
            now, saved = time.monotonic(), self.saved()
            # Whoever was stopped and goes on has not heard of the others meanwhile, and they have given it up.
            slept, self._awake = now - self._awake > self.timeout, now
            silent = [peer for peer in self.peers if now - peer.last > self.timeout]
            since = self._since
            if slept:
                self._give_up(f"this process had been stopped for more than {self.timeout:g} s")
            if silent:
                which = ", ".join(str(peer.number) for peer in silent)
                self._give_up(f"process {which} has been silent for {self.timeout:g} s: dead, stopped or cut off")
            if since is not None and now - since > self._limit:
                self._give_up(f"a step has taken more than {now - since:.0f} s: a process hangs")
            for peer in self.peers:
                peer.send(do="live", saved=saved)

    def _give_up(self, why: str) -> None:
        """End this process at once: whatever it waits for will not come."""
        if self._is_over.is_set():
            return
        said = f"ludus: hosts: {why}; process {self.seat.number} ends; the run goes on {self.saved()}\n"
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno() if sys.__stderr__ is None else sys.__stderr__.fileno(), said.encode())
        os._exit(LOST)


_team: Team | None = None


def joined() -> Team | None:
    """Return the processes that this one trains with; None if it trains alone."""
    return _team


def join(options: HostOptions, settings_digest: str) -> Team | None:
    """Before JAX starts: find the other processes and let JAX join them. None if this one trains alone.

    `settings_digest` must be the same in all: it stands for the settings that they were started with.
    """
    global _team
    if (seat := seat_of(options)) is None or _team is not None:
        return _team
    until = time.monotonic() + options.patience
    peers = _gathered(seat, until, settings_digest) if seat.number == 0 else [_leader(seat, until, settings_digest)]
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # or SIGTERM would be taken from us
    try:
        jax.distributed.initialize(
            f"{seat.host}:{seat.port}", seat.count, seat.number, initialization_timeout=int(options.patience)
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise LudusError(f"hosts.address={seat.host}:{seat.port}: JAX cannot join the others ({reason})") from error
    _team = Team(seat, options, peers)
    return _team


def check_team(team: Team | None, options: HostOptions, env_id: str, kind: Literal["compiled", "host"]) -> None:
    """Refuse what processes cannot do together."""
    if team is None and options.count > 1:
        raise LudusError(f"hosts.count={options.count}: is for the command line, which joins them before JAX starts")
    if team is not None and kind == "host":
        raise LudusError(
            f"hosts.count={team.seat.count}: {env_id} runs in Python, and only JAX environments can be shared out to "
            "processes; use num_workers on one machine"
        )


@contextlib.contextmanager
def led() -> Generator[Callable[[Callable[[], str]], None]]:
    """Lead the others, if there are any, through a run, and let them go however it ends.

    Gives a function that takes in what tells how the run would go on if it ended now.
    """
    team, code = _team, 1

    def note(saved: Callable[[], str]) -> None:
        if team is not None:
            team.saved = saved

    try:
        yield note
        code = 0
    finally:
        if team is not None:
            team.end(code)
            leave()


def leave() -> None:
    """After a run: let go of the others, all of which have ended it too."""
    global _team
    if _team is not None:
        import jax

        jax.distributed.shutdown()
        _team.close()
        _team = None


def _gathered(seat: Seat, until: float, digest: str) -> list[Peer]:
    """Wait for all others, and return them by number."""
    found: dict[int, Peer] = {}
    try:
        server = socket.create_server((seat.host, seat.port + 1))
    except OSError as error:
        raise LudusError(
            f"hosts.address={seat.host}:{seat.port}: process 0 cannot listen at port {seat.port + 1} ({error.strerror})"
        ) from error
    with server:
        while len(found) < seat.count - 1:
            server.settimeout(max(until - time.monotonic(), 0.001))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = ", ".join(str(i) for i in range(1, seat.count) if i not in found)
                raise LudusError(f"hosts.count={seat.count}: process {missing} has not come in time") from None
            connection.settimeout(max(until - time.monotonic(), 1.0))
            peer = Peer(0, connection)
            hello = peer.receive() or {}
            number = hello.get("number")
            if not isinstance(number, int) or not 0 < number < seat.count or number in found:
                _refuse(peer, f"hosts.number={number}: must be from 1 to {seat.count - 1}, each once")
            elif hello.get("settings") != digest:
                _refuse(peer, f"hosts.number={number}: was started with other settings or versions than process 0")
            else:
                connection.settimeout(None)
                peer.number, found[number] = number, peer
    for peer in found.values():
        peer.send(welcome=True)
    return [found[number] for number in sorted(found)]


def _refuse(peer: Peer, why: str) -> None:
    peer.send(refused=why)
    peer.close()
    peer.receive()  # nothing: then all of it is let go


def _leader(seat: Seat, until: float, digest: str) -> Peer:
    """Find process 0."""
    address, reason = f"{seat.host}:{seat.port}", "it has not answered"
    while time.monotonic() < until:
        try:
            connection = socket.create_connection(
                (seat.host, seat.port + 1), timeout=max(until - time.monotonic(), 0.1)
            )
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(min(0.2, max(0.0, until - time.monotonic())))
            continue
        peer = Peer(0, connection)
        peer.send(number=seat.number, settings=digest)
        answer = peer.receive()
        if answer is not None and "refused" in answer:
            peer.close()
            peer.receive()
            raise LudusError(str(answer["refused"]))
        if answer is not None and answer.get("welcome"):
            connection.settimeout(None)
            peer.last = time.monotonic()
            return peer
        reason = "it does not say that it is process 0"
    raise LudusError(f"hosts.address={address}: process 0 does not answer ({reason}); start it, and check the address")
