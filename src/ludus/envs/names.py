"""The meaning of a text in `env=` and of the names in `env_wrappers=`.

A prefix that is a known library wins: `jax:`, `gym:`, `envpool:`. Any other `module:Name` is the user's own code. A
text without a prefix is an id, for which the library is chosen, or a name that was given to `register_env`.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ludus.types import LudusError

OWN = "own"
"""Stands for the library of what users have written themselves."""
LIBRARIES = ("jax", "gym", "envpool")
PREFIXES = f"prefixes are {', '.join(f'{library}:' for library in LIBRARIES)}"
RESERVED = ("brax", "craftax", "gymnax", "jumanji", "navix", "pgx", "playground")
"""Libraries whose environments are not there under a prefix yet: no module of a user's may take their place."""
OBJECT = "object"
"""Prefix of what was made in Python, from a class, function or instance: a record, from which nothing is made."""


class EnvName(NamedTuple):
    """A library and the id in it; the library is empty where it is to be chosen, and `OWN` for the user's own code."""

    library: str
    name: str
    """An id, or a `module:Name` where the library is `OWN`."""


def parsed(env: str) -> EnvName:
    """Read what a user or a configuration says of an environment; LudusError names the right spelling."""
    prefix, colon, name = env.partition(":")
    if not colon:
        return EnvName("", env)
    if prefix in LIBRARIES:
        if prefix != "gym" and ":" in name:
            raise LudusError(f"env={env}: {prefix}: has no such id; your own class or function is written {name}")
        return EnvName(prefix, name)
    if prefix in RESERVED:
        raise LudusError(f"env={env}: no library {prefix!r} yet; {PREFIXES}; in Python, wrap it in a ludus.Environment")
    if prefix == OBJECT:
        raise LudusError(f"env={env}: stands for what was made in Python; your own code is written {spelling(name)}")
    parts = [*prefix.split("."), *name.split(".")]
    if re.search(r"[/\\]|\.py$|^$", prefix) or not name.strip(":") or ":" in name or not all(parts):
        raise LudusError(f"env={env}: your own class or function is written {spelling(env)}{_where(prefix)}")
    return EnvName(OWN, env)


def spelling(text: str) -> str:
    """Return how a user's own code is written that was written in some other way, such as a file's path."""
    path, _, name = text.partition(":")
    is_file, name = path.endswith(".py"), name.strip(":").replace(":", ".")
    parts = [part for part in re.split(r"[./\\]+", path.removesuffix(".py")) if part]
    if is_file and _is_elsewhere(path):
        parts = parts[-1:]
    if not name and not is_file and ":" not in text:
        name = parts.pop() if parts else ""
    return f"{'.'.join(parts) or 'my_module'}:{name or 'MyEnv'}"


def _is_elsewhere(path: str) -> bool:
    """Say whether a path leads out of the current folder."""
    return path.startswith(("/", "\\", "~")) or ".." in re.split(r"[/\\]", path)


def _where(path: str) -> str:
    """Say where a file has to be whose path leads elsewhere."""
    folder = path.replace("\\", "/").rpartition("/")[0] or "/"
    return f"; be in the folder {folder}, or have it in PYTHONPATH" if _is_elsewhere(path) else ""


class Wrapper(NamedTuple):
    """A wrapper by name, and its arguments."""

    name: str
    arguments: dict[str, Any]

    @property
    def plain(self) -> str | dict[str, Any]:
        """It as a configuration holds it."""
        return {"name": self.name, **self.arguments} if self.arguments else self.name


def as_wrappers(given: object) -> list[Wrapper]:
    """Read what a user or a configuration says of wrappers."""
    if isinstance(given, str | dict) or not isinstance(given, Sequence):
        raise LudusError(f"env_wrappers={given}: must be a list, as in [gymnasium.wrappers:FlattenObservation]")
    wrappers = []
    for entry in given:
        words = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, dict) else {}
        name = words.pop("name", None)
        if not isinstance(name, str) or ":" not in name or not all(isinstance(word, str) for word in words):
            raise LudusError(
                f"env_wrappers: {entry!r} must be module:Name, or {{name: module:Name, argument: value}} with arguments"
            )
        wrappers.append(Wrapper(name, words))
    return wrappers


def code_in(env: object, wrappers: Sequence[Wrapper]) -> list[str]:
    """Return the names of code, each a `module:Name`, that an id and wrappers hold."""
    library, name = parsed(env) if isinstance(env, str) else EnvName("", "")
    own = [name] if library == OWN or (library == "gym" and ":" in name) else []
    return own + [wrapper.name for wrapper in wrappers]
