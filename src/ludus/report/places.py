"""Writing the files of a report into a run folder, and never through a link out of it."""

from pathlib import Path

from ludus.runtime import files
from ludus.types import LudusError


def write_file(root: Path, name: str, data: bytes) -> Path:
    """Write a file at or below a folder, which is made if it is not there; return where it is."""
    path = root / name
    try:
        files.make_folder(path.parent)
        files.write_whole(path, data)
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path
