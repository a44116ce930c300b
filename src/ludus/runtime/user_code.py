"""Users' own code by name, such as `my_module:MyEnv`: when it is imported, and where it is looked for.

The rule. What a user types on a command line or passes in Python is their own command: it is imported, and the name
with its folder is remembered in the user's configuration folder. What a saved run or another file names is followed
only if exactly that name is remembered, or if the user says `--allow-code`. A stranger's folder can therefore never
make a machine import what its user had not already chosen to import.

Modules are looked for as Python finds them, and then in the folder where the user's own was found when the name was
typed: the current one, as a rule. It is put at the end of the path, so that nothing in it can stand in for a library.
A name that was typed in several folders is looked for in the current one, if it is among them.
"""

import contextlib
import fcntl
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Generator, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from ludus.runtime import files
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
            raise LudusError(f"{name}: the module {module} has no {path or 'such name'}{_stands_before(module)}")
        found = getattr(found, part)
    return found


def holds(name: str) -> bool:
    """Say whether the module of `module:Name`, which must have been imported, has such a name."""
    with contextlib.suppress(LudusError):
        load(name)
        return True
    return False


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
            f"{_stands_before(module)}"
        ) from error
    except Exception as error:  # whatever the user's own code raises
        raise LudusError(f"{name}: cannot be imported ({type(error).__name__}: {error})") from error
    if is_new:
        _followed[name] = folder
        with contextlib.suppress(OSError):  # a home that cannot be written to: the name must be typed again
            _remember(name, folder)
    return found


def name_of(thing: Any) -> str | None:
    """Return the name by which a class or function can be imported again; None if it has none.

    It was passed in Python, so it is the user's own command: the name is remembered.
    """
    module, path = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not path or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        return None
    name = f"{module}:{path}"
    if name not in _followed:
        _followed[name] = _folder_of(module)
        with contextlib.suppress(OSError):  # a home that cannot be written to: the name must be passed again
            _remember(name, _followed[name])
    return name


def enter(table: MutableMapping[str, Any], name: object, thing: Any, by: str) -> None:
    """Enter what a user registers into a table; the same class or function may be entered again, as by a notebook.

    Args:
        table: of everything that has such a name.
        name: without a colon, by which code is imported; nothing else may have it.
        thing: a class or a function.
        by: the function that was called, for messages.
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise LudusError(f"{by}: {name!r} must be a name without a colon")
    if not callable(thing):
        raise LudusError(f"{by}: {thing!r} must be a class or a function")
    if name in table and _place_of(table[name]) != _place_of(thing):
        raise LudusError(f"{by}: {name!r} stands for {_place_of(table[name])[1]} already; choose another name")
    table[name] = thing


def _place_of(thing: Any) -> tuple[str, str]:
    """Return the module and the name under which a class or function was written."""
    return getattr(thing, "__module__", ""), getattr(thing, "__qualname__", type(thing).__qualname__)


def check_saved(names: Iterable[str], where: str) -> None:
    """Refuse names that a file holds, unless the user has used exactly these before or allows all."""
    for name in (name for name in names if name not in _followed):
        folders = _remembered().get(name, [])
        if not folders and not _is_all_allowed:
            raise LudusError(
                f"{where}: names code that you have not used before, {name}; if you trust it, --allow-code imports it"
            )
        _followed[name] = _chosen(name, folders) if folders else _folder_of(name.partition(":")[0])


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


def _chosen(name: str, folders: list[str]) -> str:
    """Return in which folder a remembered name is looked for: there may be modules of that name in several."""
    module = name.partition(":")[0].partition(".")[0]
    left = [folder for folder in folders if _is_there(module, folder)]
    if len(left) > 1 and os.getcwd() not in left:
        raise LudusError(
            f"{name}: you have used it from {' and from '.join(folder or 'an installed package' for folder in left)}; "
            "be in the one that is meant"
        )
    return os.getcwd() if os.getcwd() in left else left[0] if left else folders[-1]


def _is_there(module: str, folder: str) -> bool:
    """Say whether a remembered folder still holds a module; an empty one stands for what is installed."""
    return not folder or _is_in(module, folder)


def _is_in(module: str, folder: str) -> bool:
    return Path(folder, f"{module}.py").is_file() or Path(folder, module).is_dir()


def _stands_before(module: str) -> str:
    """Say what Python has found in the place of a module of the current folder."""
    root = module.partition(".")[0]
    found = getattr(sys.modules.get(root), "__file__", None)
    if found is None or not _is_in(root, os.getcwd()) or Path(found).is_relative_to(os.getcwd()):
        return ""
    return f"; Python finds another {root} before yours, {found}: give yours another name"


def _file() -> Path:
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".config") / "ludus" / REMEMBERED


def _remembered() -> dict[str, list[str]]:
    """Return the remembered names and the folders of each, the latest last; a file that cannot be read has none."""
    try:
        data = json.loads(files.read(_file(), MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    given = data.items() if isinstance(data, dict) else ()
    folders = {name: [value] if isinstance(value, str) else value for name, value in given}
    return {name: each for name, each in folders.items() if isinstance(each, list) and each and _are_texts(each)}


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _remember(name: str, folder: str) -> None:
    with _locked(_file().parent):
        names = _remembered()
        if names.get(name, [None])[-1] != folder:
            module = name.partition(":")[0].partition(".")[0]
            names[name] = [
                *(other for other in names.get(name, ()) if other != folder and _is_there(module, other)),
                folder,
            ]
            # One folder is the rule, and is written as such.
            plain = {name: folders[0] if len(folders) == 1 else folders for name, folders in names.items()}
            files.write_whole(_file(), json.dumps(plain, indent=2, sort_keys=True).encode())


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
        data = json.loads(os.environ.get(INHERITED, "{}"))
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) and _are_texts(data.values()) else {}


_followed: dict[str, str] = _inherited()
"""Names that this process follows, and the folder that holds each one's module; empty if it is installed."""
