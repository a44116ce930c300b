"""The side of a process that sends a run elsewhere, beside training: `companion.py` is the side that trains.

`python -m MODULE RUN` lives as long as its standard input is open, which the training process holds; then it sends the
rest, as long as the other end answers, and ends. It speaks in lines of JSON: `say` and `news` are for the user, `wait`
asks for some seconds, and from the end of the run on shows that there still is somebody.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

from ludus.runs.trackers.mlflow.redaction import redacted
from ludus.runtime import files

LONGEST_NAP = 0.5
"""Seconds between attempts while the other end does not answer when the run is over: somebody waits."""
LAST_SECONDS = 1.8
"""For so long the other end may not have answered before a process whose run is over gives up."""
BEAT_SECONDS = 0.2
"""How often such a process shows that it is there."""
NICENESS = 10
LOCK = "lock"

Tell = Callable[..., None]


class Lifeline:
    """Tells when the run is over, and then ends this process as soon as the other end has been silent for too long.

    Whoever waits for a run must not wait for a server that is away: requests to one that hangs take longer than that,
    so this is another thread's business. It has the last word, or the thread that sends has it, never both.
    """

    def __init__(self, file: int, tell: Tell, last_words: Callable[[], str], answers: Callable[[float], bool]):
        """Listen from now on.

        Args:
            file: its end is the end of the run.
            tell: sends a message to the process that trains.
            last_words: are said if the process ends here.
            answers: tells whether the other end answers within so many seconds.
        """
        self.is_cut = threading.Event()
        self._file, self._tell, self._last_words, self._answers = file, tell, last_words, answers
        self._answered = 0.0
        self._has_spoken = threading.Lock()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def last_word(self) -> bool:
        """Return whether the thread that sends may say how it ended: nothing is said or done here any more then.

        If the last word is being said here, that is waited for, and with it the end of this process.
        """
        if self._has_spoken.acquire(blocking=False):
            return True
        self._thread.join()
        return False

    def _listen(self) -> None:
        while os.read(self._file, 1):
            pass
        self._answered = time.monotonic()
        self.is_cut.set()
        threading.Thread(target=self._knock, daemon=True).start()
        while time.monotonic() - self._answered < LAST_SECONDS:
            time.sleep(BEAT_SECONDS)
            self._tell(wait=0.0)
        if self._has_spoken.acquire(blocking=False):
            self._tell(say=self._last_words())
            os._exit(0)

    def _knock(self) -> None:
        while True:
            if self._answers(LAST_SECONDS):
                self._answered = time.monotonic()
            time.sleep(BEAT_SECONDS)


@contextlib.contextmanager
def only_one(folder: Path, is_to_give_up: Callable[[], bool]) -> Generator[bool]:
    """Be the only process that uses a folder of a run; wait for another one until told to give up."""
    files.make_folder(folder)
    lock = files.open_file(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if is_to_give_up():
                    yield False
                    return
        files.sweep(folder)
        yield True
    finally:
        os.close(lock)


def live(name: str, later: str, follow: Callable[[Path, int, Tell], None]) -> NoReturn:
    """Follow the run that is named, quietly: what this process says is for the one that started it."""
    os.nice(NICENESS)
    os.umask(0o077)
    mouth, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)

    def tell(**message: object) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(mouth, json.dumps(message).encode() + b"\n")

    try:
        follow(Path(sys.argv[1]), 0, tell)
    except Exception as error:  # a trace would be read by nobody, and may hold secrets
        what = redacted(f"{type(error).__name__}: {error}")
        tell(say=f"{name}: {what}; {later} {sys.argv[1]} sends the rest")
    os._exit(0)  # at once: somebody waits, and nothing is left to be done
