"""Users' own code by name, such as `my_module:MyEnv`: when it is imported, and where it is looked for.

The rule. What a user types on a command line or passes in Python is their own command: it is imported, and the name
with its folder is remembered in the user's configuration folder. What a saved run or another file names is followed
only if exactly that name is remembered, or if the user says `--allow-code`. A stranger's folder can therefore never
make a machine import what its user had not already chosen to import.

Modules are looked for as Python finds them, and then in the folder where the user's own was found when the name was
typed: the current one, as a rule. It is put at the end of the path, so that nothing in it can stand in for a library.
"""

import contextlib
import fcntl
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from ludus import files
from ludus.types import LudusError

REMEMBERED = "code.json"
"""The file of remembered names in the user's configuration folder."""
MOST_BYTES = 1 << 20
INSTALLED = ("site-packages", "dist-packages")
"""Folders of libraries; those of another environment than the present one are never looked in."""
INHERITED = "LUDUS_FOLLOWED_CODE"
"""Environment variable by which a child learns the names that its parent follows."""

_is_all_allowed = False


def allow() -> None:
    """Follow whatever files name from now on: the user has said `--allow-code`. Nothing is remembered for it."""
    global _is_all_allowed
    _is_all_allowed = True


def load(name: str) -> Any:
    """Return what `module:Name` stands for."""
    module, _, path = name.partition(":")
    found: Any = imported(name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise LudusError(f"{name}: the module {module} has no {path or 'such name'}")
        found = getattr(found, part)
    return found


def imported(name: str) -> Any:
    """Import the module of `module:Name`; what no file has named is the user's own command, and is remembered."""
    module, is_new = name.partition(":")[0], name not in _followed
    if not module or not all(part.isidentifier() for part in module.split(".")):
        raise LudusError(f"{name}: {module!r} is not the name of a module")
    folder = _folder_of(module) if is_new else _followed[name]
    if folder and folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise LudusError(
            f"{name}: there is no module {error.name}; install it, or be in the folder that holds it"
        ) from error
    except Exception as error:  # whatever the user's own code raises
        raise LudusError(f"{name}: cannot be imported ({type(error).__name__}: {error})") from error
    if is_new:
        _followed[name] = folder
        with contextlib.suppress(OSError):  # a home that cannot be written to: the name must be typed again
            _remember(name, folder)
    return found


def check_saved(names: Iterable[str], where: str) -> None:
    """Refuse names that a file holds, unless the user has used exactly these before or allows all."""
    for name in (name for name in names if name not in _followed):
        remembered = _remembered()
        if name not in remembered and not _is_all_allowed:
            raise LudusError(
                f"{where}: names code that you have not used before, {name}; if you trust it, --allow-code imports it"
            )
        _followed[name] = remembered[name] if name in remembered else _folder_of(name.partition(":")[0])


def for_children() -> dict[str, str]:
    """Return what the environment of a child must hold, so that it follows what this process does."""
    return {INHERITED: json.dumps(_followed)} if _followed else {}


def _folder_of(module: str) -> str:
    """Return the folder that holds a module, the current one if Python finds none; empty for what is installed."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:  # a module that was made by hand, such as `__main__`
        return ""
    if spec is None:
        return os.getcwd()
    places = list(spec.submodule_search_locations or [spec.origin or ""])
    folder = Path(places[0]).parent
    return str(folder) if folder.is_absolute() and folder.name not in INSTALLED else ""


def _file() -> Path:
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".config") / "ludus" / REMEMBERED


def _remembered() -> dict[str, str]:
    """Return the remembered names and the folder of each; a file that cannot be read remembers nothing."""
    try:
        return _strings(json.loads(files.read(_file(), MOST_BYTES)))
    except (OSError, ValueError, RecursionError):
        return {}


def _strings(data: Any) -> dict[str, str]:
    given = data.items() if isinstance(data, dict) else ()
    return {name: folder for name, folder in given if isinstance(name, str) and isinstance(folder, str)}


def _remember(name: str, folder: str) -> None:
    with _locked(_file().parent):
        names = _remembered()
        if names.get(name) != folder:
            files.write_whole(_file(), json.dumps({**names, name: folder}, indent=2, sort_keys=True).encode())


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Keep other processes from remembering at the same time, whose names would be lost."""
    files.make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _inherited() -> dict[str, str]:
    try:
        return _strings(json.loads(os.environ.get(INHERITED, "{}")))
    except (ValueError, RecursionError):
        return {}


_followed: dict[str, str] = _inherited()
"""Names that this process follows, and the folder that holds each one's module; empty if it is installed."""
