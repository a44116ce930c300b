"""The marker of a copy: a file, written last, that says which files make up the copy, with size and SHA-256 of each.

Without it nothing that lies there counts. It is written in turn to two names, so that half of a new one never takes the
place of the one before; the higher number that is whole wins. What is to replace a file of the marker before is put
beside it first, under a spare name: a new marker is true from the moment that it is there, and so is the old one until
then, wherever the copying is cut off.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ludus.runs.checkpoint.format import is_hash, sha256
from ludus.runs.limits import json_of
from ludus.runs.storage.base import MissingError, RemoteStore, StorageError
from ludus.types import LudusError

FORMAT = "ludus-copy-1"
SLOTS = ("copy-0.json", "copy-1.json")
OWN = "storage"
"""The folder in a run where its copying keeps its own state: never copied, never restored."""
MOST_BYTES = 1 << 27
"""A marker longer than this is not read."""
MOST_FILES = 300_000
MOST_NAMES, MOST_NAME = 16, 200
"""Names in a path, and characters in a name."""
NAME = re.compile(r"[^/\\\x00-\x1f\x7f]+")
RUN_ID = re.compile(r"[\w-]{1,64}", re.ASCII)


class Content(NamedTuple):
    """The content of a file, as far as one must know it to recognise it."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Marker:
    """One marker."""

    number: int
    run: str
    """The id of the run."""
    writer: str
    """Whoever writes the copy, so that of two that do one notices."""
    files: dict[str, Content] = field(default_factory=dict)
    """What lies under each path, or else under its spare name; of a file that has grown, its first bytes."""

    @property
    def slot(self) -> str:
        """The name of the file it is written to."""
        return SLOTS[self.number % 2]

    def encoded(self) -> bytes:
        """Return it as the bytes of its file, which hold their own SHA-256."""
        files = {path: list(content) for path, content in self.files.items()}
        said = {"format": FORMAT, "number": self.number, "run": self.run, "writer": self.writer, "files": files}
        return json.dumps({**said, "sha256": sha256(_canonical(said))}).encode()


def decoded(data: bytes) -> Marker:
    """Return the marker that bytes are; ValueError if they are none."""
    said = json_of(data)
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError("it is no marker of a copy")
    told = said.pop("sha256", None)
    if told != sha256(_canonical(said)):
        raise ValueError("its SHA-256 is not what it says")
    number, run, writer, files = (said.get(name) for name in ("number", "run", "writer", "files"))
    if type(number) is not int or not 0 <= number < 2**53 or not isinstance(files, dict) or len(files) > MOST_FILES:
        raise ValueError("number or files")
    if not isinstance(run, str) or not isinstance(writer, str) or not all(map(RUN_ID.fullmatch, (run, writer))):
        raise ValueError("run or writer")
    return Marker(number, run, writer, {_path(path): _content(content) for path, content in files.items()})


def _canonical(said: dict[str, Any]) -> bytes:
    return json.dumps(said, sort_keys=True).encode()


def _path(path: str) -> str:
    if not is_path(path):
        raise ValueError(f"{path[:80]!r} is not the path of a file of a run")
    return path


def is_path(path: str) -> bool:
    """Tell whether a path stays in the folder that it is read from, and is none of the copying's own."""
    names = path.split("/")
    plain = all(NAME.fullmatch(name) and len(name) <= MOST_NAME and name.strip(". ") for name in names)
    return plain and len(names) <= MOST_NAMES and names[0] not in (OWN, *SLOTS)


def _content(said: Any) -> Content:
    content = Content(*said)
    if type(content.size) is not int or not 0 <= content.size < 2**48 or not is_hash(content.sha256):
        raise ValueError("size or SHA-256")
    return content


def spare(content: Content) -> str:
    """Return the path under which a content lies while it takes the place of another one."""
    return f"{OWN}/{content.sha256}"


def read_marker(store: RemoteStore, folder: str) -> Marker | None:
    """Return the marker of the copy in a folder; None if there is none, LudusError if what is there is damaged."""
    found: list[Marker] = []
    damage = None
    for slot in SLOTS:
        try:
            found.append(decoded(content_of(store, f"{folder}/{slot}" if folder else slot, MOST_BYTES)))
        except MissingError:
            continue
        except (ValueError, TypeError, KeyError) as error:
            damage = LudusError(f"{store.name}/{folder}/{slot}: is damaged ({error})")
    if not found and damage is not None:
        raise damage
    return max(found, key=lambda marker: marker.number) if found else None


def content_of(store: RemoteStore, path: str, most: int) -> bytes:
    """Return the content of a small file of a place."""
    data = bytearray()
    for piece in store.pieces(path):
        data += piece
        if len(data) > most:
            raise StorageError(f"{store.name}/{path}: has more than {most:,} bytes")
    return bytes(data)
