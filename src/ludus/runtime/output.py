"""Output that may lose its reader: a pipe or a terminal that closes must not end what only happened to speak to it."""

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO)
"""Errors of a pipe or a terminal that nobody will read from any more."""


class Output:
    """A text stream that can always be written to. Once nobody reads it, what is written is dropped."""

    def __init__(self, stream: Any, on_loss: Callable[[], None] = lambda: None):
        """Write to this stream; `on_loss` is called when its reader has gone."""
        self.stream = stream.stream if isinstance(stream, Output) else stream
        self.is_lost = False
        self._on_loss = on_loss

    def write(self, text: str) -> int:
        """Write, if anybody reads."""
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written, if anybody reads."""
        self._try(self.stream.flush)

    def isatty(self) -> bool:
        """Whether a person sees it."""
        return not self.is_lost and self.stream.isatty()

    def let_go(self) -> None:
        """Let what was written in vain go nowhere, or the interpreter would try it once more, and fail, as it ends."""
        self.flush()
        if self.is_lost:
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
                os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        """Whatever else it is asked, the stream knows."""
        return getattr(self.stream, name)

    def _try(self, function: Callable[..., Any], *arguments: str) -> None:
        if self.is_lost:
            return
        try:
            function(*arguments)
            return
        except OSError as error:  # a file on a disk that is full for now is not lost
            self.is_lost = error.errno in GONE
        except ValueError:
            if not self.stream.closed:
                raise
            self.is_lost = True
        if self.is_lost:
            self._on_loss()
