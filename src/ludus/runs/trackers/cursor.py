"""The place that a run has reached in MLflow or in a tracker of the user's: files that survive a crash at any moment.

`cursor.json` says which store and which of its runs the rows went to, and holds the batch that is on its way: after a
crash it is sent again as it was, which MLflow's stores take for what they have already. `<run>.sent` has a digest of
each row that has arrived, timings left out: a resumed run computes rows again, and only if they came out differently
do they belong to other curves.
"""

import errno
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ludus.runs.limits import json_of
from ludus.runs.metrics import is_timing
from ludus.runtime import files
from ludus.types import LudusError

MLFLOW, CURSOR = "mlflow", "cursor.json"
DIGEST_BYTES = 8
MOST_BYTES, MOST_ROWS = 1 << 23, 1 << 22
RUN = re.compile(r"[\w-]{1,64}", re.ASCII)
"""What MLflow, or any tracker, calls a run, and a file here is called by."""


class DivergedError(Exception):
    """A row that had arrived was computed again and came out differently."""


@dataclass
class Batch:
    """Rows on their way: the number of the first, the digests of all, and the points they are made of."""

    first: int
    digests: list[str]
    metrics: list[list[Any]]


@dataclass
class Cursor:
    """The place where the rows of a run go."""

    uri: str
    """The store, without credentials."""
    experiment: str
    run: str
    started: int
    """When the run began, in milliseconds: times of rows count from there."""
    continues: str | None = None
    """An MLflow run that holds rows which have been taken back since."""
    sending: Batch = field(default_factory=lambda: Batch(0, [], []))


def digest(row: dict[str, Any]) -> str:
    """Return what two rows have in common if they say the same, however long it took."""
    content = {name: value for name, value in row.items() if not is_timing(name)}
    text = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()


class CursorFiles:
    """The cursor of one run folder, on disk."""

    def __init__(self, run: Path, folder: str = MLFLOW):
        """Begin with nothing read; `folder` is where in the run folder they lie."""
        self.folder = run / folder

    def load(self) -> Cursor | None:
        """Return the cursor; None if nothing has been sent, or if what it says cannot be used."""
        try:
            data = json_of(files.read(self.folder / CURSOR, MOST_BYTES))
            sending = Batch(**data.pop("sending"))
            cursor = Cursor(**data, sending=sending)
            _check(cursor)
            return cursor
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise LudusError(f"{self.folder / CURSOR}: is damaged ({error}); remove it to send the run anew") from error

    def save(self, cursor: Cursor) -> None:
        """Write it down, whole."""
        files.make_folder(self.folder)
        files.write_whole(self.folder / CURSOR, json.dumps(asdict(cursor)).encode())

    def sent(self, cursor: Cursor) -> list[str]:
        """Return the digests of the rows that have arrived."""
        try:
            data = files.read(self.folder / f"{cursor.run}.sent", DIGEST_BYTES * MOST_ROWS)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LudusError(f"{self.folder}: is damaged ({error.strerror}); remove it to send the run anew") from error
        whole = len(data) // DIGEST_BYTES * DIGEST_BYTES
        return [data[i : i + DIGEST_BYTES].hex() for i in range(0, whole, DIGEST_BYTES)]

    def settle(self, cursor: Cursor, count: int) -> list[str]:
        """Take the receiver's own word for how many rows have arrived; return their digests.

        Of the batch that was on its way when a process was killed it may have all, some or none.
        """
        sent, batch = self.sent(cursor), cursor.sending
        late = batch.digests[max(0, len(sent) - batch.first) : max(0, count - batch.first)]
        if late:
            self.add(cursor, Batch(len(sent), late, []))
        elif count < len(sent):
            files.cut(self.folder / f"{cursor.run}.sent", DIGEST_BYTES * count)
        return [*sent, *late][:count]

    def add(self, cursor: Cursor, batch: Batch) -> None:
        """Take note that a batch has arrived."""
        file = files.open_file(self.folder / f"{cursor.run}.sent", os.O_WRONLY | os.O_CREAT)
        try:
            os.lseek(file, batch.first * DIGEST_BYTES, os.SEEK_SET)
            data = bytes.fromhex("".join(batch.digests))
            if os.write(file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        finally:
            os.close(file)


def _check(cursor: Cursor) -> None:
    """Refuse a cursor that does not say what it is meant to."""
    batch = cursor.sending
    texts = (cursor.uri, cursor.experiment, cursor.run, cursor.continues or "", *batch.digests)
    if not all(isinstance(text, str) for text in texts) or not RUN.fullmatch(cursor.run):
        raise ValueError("it names no run")
    if not isinstance(cursor.started, int) or not isinstance(batch.first, int) or not 0 <= batch.first <= MOST_ROWS:
        raise ValueError("its rows have no place")
    if any(len(bytes.fromhex(text)) != DIGEST_BYTES for text in batch.digests):
        raise ValueError("its digests are none")
    for key, value, timestamp, step in batch.metrics:
        if not isinstance(key, str) or not all(isinstance(number, int | float) for number in (value, timestamp, step)):
            raise ValueError("its points are none")
