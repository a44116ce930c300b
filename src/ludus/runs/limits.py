"""Reading what anybody may have written: a run folder can come from a stranger, or from a disk that fails.

Every limit holds before it costs: a file that is no file is not waited for, a number of a million digits is not made,
nesting that would take a parser hours is left at its thirtieth level. What is beyond a limit is a ValueError, or an
OSError where there is no file, whose text says in a few words what is wrong.
"""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ludus.runtime import files

MOST_BYTES = 1 << 20
"""A configuration or identity longer than this is not read."""
MOST_DEPTH = 32
"""Levels of lists and dictionaries in each other."""
MOST_DIGITS = 308
"""Of a whole number; a longer one is none that a float could hold."""
MOST_PARTS = 100_000
"""Keys and values of a configuration."""
MOST_COLUMNS = 2_000
"""Names in a row of the journal, and in all of its rows together."""
MOST_LINE = 4 << 20
"""Bytes of a row."""
MOST_JOURNAL = 2 << 30
"""Bytes of a journal: a few million rows."""
LARGEST = 10**MOST_DIGITS
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def open_journal(path: Path) -> int:
    """Return a descriptor of a journal; OSError if it is no file, or one that is too long to be a journal."""
    return files.open_regular(path, MOST_JOURNAL)


def yaml_of(text: str) -> Any:
    """Return what a YAML document says."""
    depth = 0
    # Events come one by one, so that what is nested too deeply or repeats itself is left before all of it is read.
    for parts, event in enumerate(yaml.parse(text, LOADER)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has aliases, which a few lines can make endless")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and _is_long_number(event.value):
            raise ValueError(f"it has a number of {len(event.value):,} characters")
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
        if parts > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS:,} parts")
    loader = LOADER(text)
    try:
        value = loader.get_single_data()
    finally:
        loader.dispose()
    check(value)
    return value


def _is_long_number(text: str) -> bool:
    """Tell whether a text may become a number that takes long to make: 1:1:1 is one, to the base of sixty."""
    return len(text) > MOST_DIGITS and text[:1] in "+-.0123456789" and not text.strip("+-.0123456789:_abcdefxABCDEFXo")


def json_of(text: bytes, whole: Callable[[str], float] | None = None) -> Any:
    """Return what JSON says; `whole` makes numbers of digits, of which there must not be too many by itself."""
    try:
        value = json.loads(text, parse_int=whole or _whole)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from error
    check(value)
    return value


def reason(error: Exception) -> str:
    """Return the first line of what an error says."""
    if isinstance(error, UnicodeEncodeError):
        return "it has characters that are none (lone surrogates)"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"{error.problem}, line {error.problem_mark.line + 1}"[:200]
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def readable(text: str) -> str:
    """Return a text that can be written as UTF-8: names of folders may hold bytes that are no characters."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def name_of(path: Path) -> str:
    """Return the name of a folder as a text that can be written, whatever its bytes are."""
    return readable(os.fspath(path.absolute().name))


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits):,} digits")
    return int(digits)


def whole_or_unknown(digits: str) -> float:
    """Return a whole number; NaN in place of one that no float could hold."""
    return int(digits) if len(digits) <= MOST_DIGITS else math.nan


def check(value: Any) -> None:
    """Refuse what could be read and yet not be written, shown or gone through."""
    waiting = [(value, 0)]
    while waiting:
        entry, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
        if isinstance(entry, str):
            entry.encode()
        elif isinstance(entry, int) and abs(entry) >= LARGEST:
            raise ValueError(f"it has a number of more than {MOST_DIGITS} digits")
        elif isinstance(entry, dict):
            waiting += [(part, depth + 1) for pair in entry.items() for part in pair]
        elif isinstance(entry, list | tuple | set):
            waiting += [(part, depth + 1) for part in entry]
