"""Where reports are written: into a run folder, and never through a link out of it."""

from pathlib import Path

from ludus import files
from ludus.types import LudusError


def write_file(root: Path, name: str, data: bytes) -> Path:
    """Write a file at or below a folder, which is made if it is not there; return where it is.

    A run folder may come from someone else: a folder in it that leads elsewhere is refused.
    """
    path = root / name
    folders = [folder for folder in path.parents if folder == root or root in folder.parents]
    try:
        for folder in reversed(folders):
            if folder.is_symlink():
                raise LudusError(f"{folder}: is a link; reports are not written through links, remove it")
            files.make_folder(folder)
        files.write_whole(path, data)
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path
