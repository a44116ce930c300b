"""The log and the videos of a run folder. Links are not followed: a folder may come from a stranger."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ludus.runtime import files

LOG_BYTES = 6000
VIDEOS, MEDIA_TYPES = "videos", {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


class Video(NamedTuple):
    """A video of a run: its name in the folder, its media type, and when it was written."""

    name: str
    kind: str
    written: float


def log_end(path: Path) -> str:
    """Return the last lines of a log; nothing if there is none."""
    try:
        with os.fdopen(files.open_regular(path, 1 << 62), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES)
    except OSError:
        return ""
    if size > LOG_BYTES:
        text = text.partition(b"\n")[2]
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text.decode(errors="replace")
    )


def newest_video(run: Path) -> Video | None:
    """Return the video of a run that was written last."""
    found = []
    try:
        if (run / VIDEOS).is_symlink():
            return None
        for entry in os.scandir(run / VIDEOS):
            kind = MEDIA_TYPES.get(Path(entry.name).suffix)
            if kind and not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                found.append(Video(entry.name, kind, entry.stat(follow_symlinks=False).st_mtime))
    except OSError:
        return None
    return max(found, key=lambda video: (video.written, video.name), default=None)


def open_newest_video(run: Path) -> tuple[BinaryIO, str] | None:
    """Open the video of a run that was written last; return it with its media type."""
    video = newest_video(run)
    if video is None:
        return None
    try:
        folder = os.open(run / VIDEOS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            file = os.open(video.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    return os.fdopen(file, "rb"), video.kind
