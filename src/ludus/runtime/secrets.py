"""Values that no file may hold, such as passwords: they are named by an environment variable, as in `${oc.env:NAME}`.

That text is what a configuration, a checkpoint and a worker are given. The value takes its place only where an
environment or a wrapper is made, and what is written down afterwards has the text again, even if an error repeats it.
"""

import os
import re
from typing import Any

from ludus.types import LudusError

VARIABLE = re.compile(r"\$\{oc\.env:([A-Za-z_]\w*)\}")
WORDS = re.compile("token|password|passwd|apikey|secret|credential")
"""Words in a key by which its value is taken for a secret, without regard to case and underscores."""
SHORTEST = 4
"""A value that is shorter than this would be found in any text."""

_values: dict[str, str] = {}
"""Values that have been read in this process, and the texts that name them."""


def check(what: str, value: Any, is_secret: bool = False, is_listed: bool = False) -> None:
    """Raise LudusError for a literal value under a key that looks like a secret's, however deep; it is not repeated.

    An entry of a list (`is_listed`) has no name that could be given on a command line.
    """
    if isinstance(value, dict):
        for key, entry in value.items():
            check(f"{what}.{key}", entry, is_secret or _looks_secret(str(key)), is_listed)
    elif isinstance(value, list | tuple):
        for entry in value:
            check(what, entry, is_secret, is_listed=True)
    elif is_secret and _is_literal(what, value):
        key = what.rpartition(".")[2]
        named = f"${{oc.env:{key.upper()}}}"
        given = f"{named} in its place" if is_listed else f"'{what}={named}'"
        raise LudusError(
            f"{what}: looks like a secret, which a run must not write down; put it into an environment variable, say "
            f"{key.upper()}, and give {given}"
        )


def filled(what: str, value: Any, is_secret: bool = False) -> Any:
    """Return a value with every `${oc.env:NAME}` replaced by what that variable holds; LudusError if it is not set."""
    if type(value) is dict:
        return {k: filled(f"{what}.{k}", entry, is_secret or _looks_secret(str(k))) for k, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(filled(what, entry, is_secret) for entry in value)
    return VARIABLE.sub(lambda found: _read(what, found, is_secret), value) if isinstance(value, str) else value


def hidden(text: str) -> str:
    """Return a text that is to be written down, without the values that were read."""
    for value, name in _values.items():
        text = text.replace(value, name)
    return text


def is_named(text: Any) -> bool:
    """Tell whether a text names variables, and needs nothing else to be filled in."""
    return isinstance(text, str) and VARIABLE.search(text) is not None and "${" not in VARIABLE.sub("", text)


def _read(what: str, found: re.Match[str], is_secret: bool) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise LudusError(f"{what}={found[0]}: the environment variable {found[1]} is not set")
    if is_secret and len(value) >= SHORTEST:
        _values[value] = found[0]
    return value


def _looks_secret(key: str) -> bool:
    return WORDS.search(re.sub("[^a-z]", "", key.lower())) is not None


def _is_literal(what: str, value: Any) -> bool:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not value):
        return False
    if isinstance(value, int | float) and "tokens" in what.rpartition(".")[2].lower():
        return False  # how many
    return not is_named(value)
