"""Preferences of people on disk: a text file with a JSON object on each line.

    {"first": 3, "second": 17, "prefer": "first"}

`first` and `second` are the numbers of two segments; `prefer` is "first", "second" or "equal". Other names in an object
are left to whoever wrote it. The segments are the episodes of a file or folder of demonstrations
(`demonstration_file.py`), all of one length, counted from 0.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ludus.runtime import files
from ludus.types import LudusError

FILE_BYTES, LINE_CHARACTERS = 1 << 26, 10_000
"""The most bytes that a file may have, and the most characters of a line."""
ANSWERS = {"first": 1.0, "second": 0.0, "equal": 0.5}
"""What can be said of two segments, and the probability that the first is preferred."""


class Preferences(NamedTuple):
    """Preferences in the order of their lines, `[n]` each."""

    first: np.ndarray
    second: np.ndarray
    label: np.ndarray
    """The probability that the first is preferred: 1, 0 or 1/2."""


def read_preferences(path: str | Path, num_segments: int) -> Preferences:
    """Read a file of preferences between so many segments; LudusError in one line for the first that makes no sense."""
    path = Path(path)
    try:
        text = files.read(path, FILE_BYTES).decode()
    except (OSError, ValueError) as error:
        raise LudusError(f"{path}: cannot be read as preferences ({str(error)[:120]})") from error
    rows = [_row(f"{path} line {i}", line, num_segments) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not rows:
        raise LudusError(f"{path}: holds no preferences")
    first, second, label = zip(*rows, strict=True)
    return Preferences(np.array(first, np.int64), np.array(second, np.int64), np.array(label, np.float32))


def as_line(first: int, second: int, prefer: str) -> bytes:
    """Return the line of one preference."""
    return json.dumps({"first": first, "second": second, "prefer": prefer}).encode() + b"\n"


def _row(where: str, line: str, num_segments: int) -> tuple[int, int, float]:
    if len(line) > LINE_CHARACTERS:
        raise LudusError(f"{where}: has {len(line):,} characters, more than the {LINE_CHARACTERS:,} that it may have")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LudusError(f"{where}: is not JSON ({str(error)[:80]})") from error
    if not isinstance(found, dict):
        raise LudusError(f'{where}: must be an object such as {{"first": 0, "second": 1, "prefer": "first"}}')
    if missing := [name for name in ("first", "second", "prefer") if name not in found]:
        raise LudusError(f"{where}: has no {missing[0]}")
    for name in ("first", "second"):
        number = found[name]
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < num_segments:
            raise LudusError(f"{where}: {name}={str(number)[:40]}: there are segments 0 to {num_segments - 1}")
    if found["first"] == found["second"]:
        raise LudusError(f"{where}: compares segment {found['first']} with itself")
    if not isinstance(found["prefer"], str) or found["prefer"] not in ANSWERS:
        raise LudusError(f"{where}: prefer={str(found['prefer'])[:40]}: must be one of {', '.join(ANSWERS)}")
    return found["first"], found["second"], ANSWERS[found["prefer"]]
