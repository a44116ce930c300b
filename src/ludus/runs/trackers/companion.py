"""The training side of a process that sends a run elsewhere: it is started, heard, and waited for at the end.

Importing a client library takes seconds and a server may take minutes, so nothing of either happens in the process that
trains. `child.py` is the other side.
"""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Any

from ludus.runs.folder import RunFolder
from ludus.runtime import processes

SIGN_SECONDS = 5.0
"""How long the end of a run waits for a sign of life."""
MOST_SECONDS, HURRY_SECONDS = 60.0, 15.0
"""How long it waits in all, unless it is asked for more; the second after an interrupted or failed run."""
SILENT_SECONDS = 2.5
"""A longer wait is explained; before that the process has given up a server that does not answer."""
KILL_SECONDS = 2.0


class Companion:
    """A process beside training, which reads the run folder by itself."""

    def __init__(self, name: str, module: str, later: str, say: Callable[[str], None]):
        """Start nothing yet.

        Args:
            name: the place where the run goes, for messages.
            module: run as `python -m MODULE RUN`.
            later: the verb that sends the rest.
            say: prints one line for the user.
        """
        self._name, self._module, self._verb, self._say = name, module, later, say
        self._folder: RunFolder | None = None
        self.process: subprocess.Popen | None = None
        """None while it does not run."""
        self._heard = b""

    def begin(self, folder: RunFolder, variables: dict[str, str] | None = None) -> None:
        """Start the process. Its standard input is a lifeline: once that is closed, it sends the rest and ends."""
        self._folder, self._heard = folder, b""
        try:
            self.process = processes.start(
                ["-m", self._module, str(folder.path.absolute())],
                variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's signals are the trainer's
            )
            assert self.process.stdout is not None
            os.set_blocking(self.process.stdout.fileno(), False)
        except OSError as error:
            self._say(f"{self._name}: cannot be started ({error.strerror}); {self._later}")

    def wake(self) -> None:
        """Hear what there is to hear; the process looks at the folder by itself."""
        if self.process is not None:
            self._hear(0.0)

    def end(self) -> None:
        """Close the lifeline and wait, as long as there are signs of life."""
        if self.process is None or self._folder is None:
            return
        process, is_finished = self.process, self._folder.identity.get("status") == "finished"
        assert process.stdin is not None
        try:
            with contextlib.suppress(OSError):
                process.stdin.close()
            self._listen(time.monotonic() + SILENT_SECONDS)
            if self.process is not None:
                self._say(f"{self._name}: the rest is being sent")
            self._listen_on(MOST_SECONDS if is_finished else HURRY_SECONDS)
            if self.process is not None:
                self._say(f"{self._name}: takes too long; {self._later}")
        finally:
            if self.process is not None:
                self._let_go(process)

    def _listen(self, deadline: float) -> None:
        while self.process is not None and (left := deadline - time.monotonic()) > 0:
            self._hear(left)

    def _listen_on(self, most: float) -> None:
        """Listen until the process ends, or gives no sign for too long."""
        now = time.monotonic()
        limit, deadline = now + most, now + SIGN_SECONDS
        while self.process is not None and (left := min(deadline, limit) - time.monotonic()) > 0:
            if (asked := self._hear(left)) is not None:
                now = time.monotonic()
                deadline, limit = now + max(SIGN_SECONDS, asked), max(limit, now + asked)

    @property
    def _later(self) -> str:
        return f"{self._verb} {self._folder.path if self._folder else 'RUN'} sends the rest"

    def _hear(self, seconds: float) -> float | None:
        """Read messages, waiting so long for one; return for how long the process asks to be left alone, if it does."""
        assert self.process is not None and self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        if not select.select([pipe], [], [], seconds)[0]:
            return None
        data = os.read(pipe, 1 << 16)
        *lines, self._heard = (self._heard + data).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines if line]
        for message in messages:
            if text := message.get("say") or message.get("news"):
                self._say(text)
        if not data:
            self._over()
        return max((message.get("wait", 0.0) for message in messages), default=0.0)

    def _over(self) -> None:
        """Take note that the process has ended."""
        assert self.process is not None
        process = self.process
        self._let_go(process, KILL_SECONDS)
        if process.returncode:
            self._say(f"{self._name}: its process ended with code {process.returncode}; {self._later}")

    def _let_go(self, process: subprocess.Popen, seconds: float = 0.0) -> None:
        """Leave nothing behind."""
        self.process = None
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
