"""Users' own environments: found by `module:Name`, made from their options, and what is wrong with them in one line."""

import difflib
import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ludus.envs.names import LIBRARIES, PREFIXES
from ludus.runtime import secrets, user_code
from ludus.types import LudusError


def find(name: str, registered: Mapping[str, Callable[..., Any]]) -> object:
    """Import a `module:Name`; return what its module registers under the name, or what the name stands for."""
    module, _, own = name.partition(":")
    by_gymnasium = f"; an id that a module registers with Gymnasium is written gym:{name}"
    hint = by_gymnasium if re.search(r"-v\d+$", own) else ""
    try:
        user_code.imported(name)
    except LudusError as error:
        close = difflib.get_close_matches(module, LIBRARIES, 1)
        meant = f"; did you mean {close[0]}:{own}?" if close else f"; {PREFIXES}"
        raise LudusError(f"env={error}{hint}{meant}") from error
    try:
        return registered[own] if own in registered else user_code.load(name)
    except LudusError as error:
        raise LudusError(f"env={error}{hint}") from error


def called(make: Callable[..., Any], name: str, options: dict[str, Any]) -> Any:
    """Return what a class or function makes of options; LudusError, with the traceback as a note, if it raises."""
    given = secrets.filled("env_options", options)
    try:
        return make(**given)
    except LudusError:
        raise
    except Exception as error:  # whatever the user's own code raises
        if isinstance(error, TypeError) and not _takes_all(make, given):
            raise failure(name, options, error) from error
        told = LudusError(f"env={name}: raised {reason(error)} when it was made")
        told.add_note(traceback.format_exc().rstrip())
        raise told from error


def _takes_all(make: Callable[..., Any], options: dict[str, Any]) -> bool:
    """Say whether a function has an argument for each option, and needs no others."""
    try:
        inspect.signature(make).bind(**options)
    except (TypeError, ValueError):
        return False
    return True


def failure(name: str, options: dict[str, Any], error: Exception) -> LudusError:
    """Return, in one line, why an environment's own code could not make it."""
    if options and isinstance(error, TypeError | ValueError | AssertionError):
        return LudusError(f"env_options={options}: {name} does not take them ({reason(error)})")
    return LudusError(f"env={name}: cannot be made ({reason(error)})")


def reason(error: Exception) -> str:
    """Return an exception in one line; one without words by the line of code that raised it."""
    if str(error).strip():
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {frame.line}"
