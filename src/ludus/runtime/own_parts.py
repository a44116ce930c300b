"""Parts of a run that users write themselves and settings name: trackers and callbacks.

An entry of such a setting is the `module:Name` of a class, of a function or of a made object; a dictionary with that
as `name` and arguments besides; a registered name; or, in Python, an object or a class. An object is written down by
the name of its class and, if that is a dataclass, with its fields; one that cannot be made again from that as
`object:Name`, and must be passed again.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ludus.runtime import secrets, user_code
from ludus.types import LudusError

OBJECT = "object:"
PLAIN = bool | int | float | str | None


def check(key: str, given: object) -> tuple[Any, ...]:
    """Return the entries of a setting; LudusError for one that can be none. Nothing is imported yet."""
    if isinstance(given, str | dict) or not isinstance(given, list | tuple):
        raise LudusError(f"{key}={given!r}: must be a list, as in [my_module:Name]")
    for entry in given:
        name = _name(entry)
        if isinstance(entry, str | dict) and (not isinstance(name, str) or not name.strip(":")):
            raise LudusError(f"{key}: {entry!r} must be module:Name, or {{name: module:Name, argument: value}}")
    secrets.check(key, [entry for entry in given if isinstance(entry, dict)])
    return tuple(given)


def made(key: str, entry: Any, registered: Mapping[str, Any] = MappingProxyType({}), calls: bool = True) -> Any:
    """Return the object that an entry stands for; what must be imported for it is.

    A class is called without arguments, or with those of the entry; so is a function, if `calls`.
    """
    found, options = entry, {}
    if isinstance(entry, str | dict):
        found = _found(key, _name(entry), registered)
        options = {} if isinstance(entry, str) else {name: value for name, value in entry.items() if name != "name"}
    is_called = isinstance(found, type) or bool(options) or (calls and inspect.isroutine(found))
    if not is_called:
        return found
    try:
        return found(**secrets.filled(key, options))
    except LudusError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise LudusError(f"{key}={label(entry)}: cannot be made ({type(error).__name__}: {error})") from error


def _found(key: str, name: str, registered: Mapping[str, Any]) -> Any:
    """Return what a name stands for."""
    if name in registered:
        return registered[name]
    if name.startswith(OBJECT):
        raise LudusError(
            f"{key}={name}: was made in Python: pass it again, as Trainer.resume(..., **{{'{key}': [...]}}), or go on "
            f"without it by {key}=[]"
        )
    if ":" not in name:
        there = f"; there are {', '.join(registered)}" if registered else ""
        raise LudusError(f"{key}={name}: is not known here{there}; your own is written my_module:Name")
    try:
        return user_code.load(name)
    except LudusError as error:
        raise LudusError(f"{key}={error}") from error


def plain(entries: Iterable[Any]) -> list[Any]:
    """Return entries as a configuration holds them."""
    return [entry if isinstance(entry, str | dict) else _described(entry) for entry in entries]


def code_in(entries: Any) -> list[str]:
    """Return the names of users' own code in the entries of a configuration."""
    names = map(_name, entries if isinstance(entries, list | tuple) else ())
    return [name for name in names if isinstance(name, str) and ":" in name and not name.startswith(OBJECT)]


def label(entry: Any) -> str:
    """Return what an entry is called: the same for an object and for the name under which it was written down."""
    described = plain([entry])[0]
    return str(_name(described)).removeprefix(OBJECT)


def _name(entry: Any) -> Any:
    return entry if isinstance(entry, str) else entry.get("name") if isinstance(entry, dict) else None


def _described(thing: Any) -> str | dict[str, Any]:
    """Return the name by which an object can be made again, and what with."""
    if isinstance(thing, type) or inspect.isfunction(thing):
        return user_code.name_of(thing) or f"{OBJECT}{thing.__qualname__}"
    kind = type(thing)
    fields = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing) if f.init} if _is_record(thing) else {}
    name = user_code.name_of(kind) if _can_be_made(kind, fields) else None
    if name is None:
        return f"{OBJECT}{kind.__qualname__}"
    return {"name": name, **fields} if fields else name


def _is_record(thing: Any) -> bool:
    return dataclasses.is_dataclass(thing) and not isinstance(thing, type)


def _can_be_made(kind: type, fields: dict[str, Any]) -> bool:
    """Say whether a class gives the same again if it is called with these arguments alone, which may be written."""
    with contextlib.suppress(LudusError):
        secrets.check(kind.__qualname__, fields)
        if fields:
            return all(isinstance(value, PLAIN) for value in fields.values())
        code = getattr(kind.__init__, "__code__", None)
        return code is None or code.co_argcount == 1
    return False
