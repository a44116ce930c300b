"""Makes a film of a recorded episode and its pictures: an mp4 (H.264) or a gif, and a side file.

The side file is next to the film and ends in `.jsonl`: a first line about the film, then one line for each frame with
the numbers that were drawn on it.
"""

import contextlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ludus.report.video.draw import DIM, NIGHT, PANEL, WHITE, blit, format_number, shortened, text_width, write_text
from ludus.report.video.overlay import SCENE, Overlay
from ludus.runs.episode_file import Episode
from ludus.runtime import files
from ludus.types import LudusError

FORMAT = "ludus-video-1"
HOLD_SECONDS = 1.0
"""The time that the last picture is shown."""
GIF_WIDTH, GIF_RATE, GIF_COLORS = 640, 25, 96
QUALITY = {"crf": "20", "preset": "veryfast"}


class Frame(NamedTuple):
    """The pixels of a frame, and its line in the side file."""

    pixels: np.ndarray
    drawn: dict[str, Any]


Frames = Callable[[int], Iterator[Frame]]
"""Makes every n-th frame of a film, each time it is called from the first."""
Pictures = Callable[[int], Iterable[np.ndarray]]
"""Makes the pictures of every n-th of an episode's T observations, and the picture after its last step."""


def write_film(path: Path, frames: Frames, rate: float, about: dict[str, Any], gif: bool = False) -> list[Path]:
    """Write `path` (an .mp4), its side file and, with `gif`, a gif; a file appears whole or not at all."""
    made = [path, path.with_suffix(".jsonl")]
    try:
        files.make_folder(path.parent)
        with _whole(path) as film, _whole(made[1]) as side:
            _write_mp4(film, side, frames, rate, {"format": FORMAT, "film": path.name, "rate": rate, **about})
        if gif:
            made.append(path.with_suffix(".gif"))
            with _whole(made[-1]) as film:
                write_gif(film, frames, rate)
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error
    return made


def _write_mp4(film: Path, side: Path, frames: Frames, rate: float, about: dict[str, Any]) -> None:
    with side.open("w", encoding="utf-8") as lines, Mp4(film, rate) as mp4:
        for count, frame in enumerate(frames(1)):
            if not count:
                size = frame.pixels.shape[1], frame.pixels.shape[0]
                lines.write(json.dumps({**about, "size": size}, allow_nan=False) + "\n")
            mp4.add(frame.pixels)
            lines.write(json.dumps({"frame": count, **frame.drawn}, allow_nan=False) + "\n")


class Mp4:
    """An H.264 film that is written frame by frame."""

    def __init__(self, path: Path, rate: float, threads: int = 0):
        """Prepare; the size is that of the first frame. `threads` is for the encoder, which chooses with 0."""
        self.path, self.rate, self.threads = path, Fraction(rate).limit_denominator(1000), threads

    def __enter__(self) -> "Mp4":
        """Open the file."""
        import av

        self.container = av.open(str(self.path), "w", format="mp4", options={"movflags": "+faststart"})
        self.stream: Any = None
        return self

    def add(self, pixels: np.ndarray) -> None:
        """Add a frame of bytes `[h, w, 3]`; H.264 needs even sides, so that a row or column may be repeated."""
        import av

        height, breadth = pixels.shape[:2]
        if height % 2 or breadth % 2:
            pixels = np.pad(pixels, ((0, height % 2), (0, breadth % 2), (0, 0)), mode="edge")
        if self.stream is None:
            self.stream = self.container.add_stream("libx264", rate=self.rate, options=QUALITY)
            self.stream.width, self.stream.height, self.stream.pix_fmt = pixels.shape[1], pixels.shape[0], "yuv420p"
            self.stream.codec_context.thread_count = self.threads
        self.container.mux(self.stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))

    def __exit__(self, *_: object) -> None:
        """Write the frames that the encoder still has, and close."""
        with contextlib.closing(self.container):
            if self.stream is not None:
                self.container.mux(self.stream.encode())


def write_gif(path: Path, frames: Frames, rate: float, breadth: int = GIF_WIDTH, most_rate: float = GIF_RATE) -> None:
    """Write a gif: smaller, with at most `most_rate` frames a second, and one palette for all frames."""
    every = max(1, round(rate / most_rate))
    montage = Image.fromarray(np.concatenate([frame.pixels[::4, ::4].copy() for frame in frames(4 * every)]))
    palette = montage.quantize(GIF_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)

    def quantized() -> Iterator[Image.Image]:
        for frame in frames(every):
            yield _reduced(frame.pixels, breadth).quantize(palette=palette, dither=Image.Dither.NONE)

    made = quantized()
    next(made).save(
        path, "GIF", save_all=True, append_images=made, loop=0, duration=round(1000 * every / rate), disposal=1
    )


def _reduced(pixels: np.ndarray, breadth: int) -> Image.Image:
    image = Image.fromarray(pixels)
    if image.width <= breadth:
        return image.copy()  # because the next frame is drawn on the same array
    return image.resize((breadth, round(image.height * breadth / image.width)), Image.Resampling.LANCZOS)


@contextlib.contextmanager
def _whole(path: Path) -> Generator[Path]:
    """Yield a path to write to; the file gets its name only if no error occurs."""
    with files.whole(path) as partial:
        os.close(files.open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield partial


def episode_frames(
    episode: Episode, pictures: Pictures, rate: float, action_names: Sequence[str] = (), note: str = ""
) -> Frames:
    """Return the frames of one episode; the last picture is shown longer."""

    def frames(every: int) -> Iterator[Frame]:
        overlay, last = Overlay(episode, action_names, note), len(episode) - 1
        drawn: dict[str, Any] = {}
        for row, picture in zip(rows_of(episode, every), pictures(every), strict=True):
            place(overlay.scene, picture)
            drawn = overlay.draw(min(row, last))
            if row <= last:
                yield Frame(overlay.canvas, {"picture": row, **drawn})
        ending = _ending(episode)
        _banner(overlay.scene, ending)
        for _ in range(round(HOLD_SECONDS * rate / every)):
            yield Frame(overlay.canvas, {"picture": last + 1, **drawn, "ended": ending})

    return frames


def rows_of(episode: Episode, every: int) -> list[int]:
    """Return the row of every n-th picture, and one more for the picture after the last step."""
    return [*range(0, len(episode), every), len(episode)]


def about_episode(episode: Episode) -> dict[str, Any]:
    """Return the part of the side file's first line that is about an episode."""
    about = asdict(episode.about)
    return {"episode": {name: value for name, value in about.items() if name != "env_options"}, "steps": len(episode)}


def place(scene: np.ndarray, picture: np.ndarray) -> None:
    """Put a picture into a scene, as large as fits."""
    if picture.shape == scene.shape:
        scene[:] = picture
        return
    fitting = fit(picture, (scene.shape[1], scene.shape[0]))
    scene[:] = NIGHT
    blit(scene, fitting, (scene.shape[1] - fitting.shape[1]) // 2, (scene.shape[0] - fitting.shape[0]) // 2)


def fit(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a picture enlarged or reduced to fit into a size; small ones keep their square pixels."""
    height, breadth = picture.shape[:2]
    factor = min(size[0] / breadth, size[1] / height)
    if factor == 1:
        return picture
    if factor >= 2:
        return picture.repeat(int(factor), axis=0).repeat(int(factor), axis=1)
    shape = max(1, round(breadth * factor)), max(1, round(height * factor))
    return np.asarray(Image.fromarray(picture).resize(shape, Image.Resampling.BILINEAR))


def _ending(episode: Episode) -> str:
    how = "terminated" if episode.about.terminated else "time limit" if episode.about.truncated else "ended"
    return f"{how} after {len(episode):,} steps · return {format_number(float(episode.arrays['return'][-1]))}"


def _banner(scene: np.ndarray, text: str) -> None:
    """Write a line into the upper left corner of a scene whose episode has ended."""
    ground = PANEL
    breadth = text_width(text, 14) + 24
    scene[12:40, 12 : 12 + breadth] = ground
    write_text(scene, text, 24, 17, 14, WHITE, ground)


class Tile(NamedTuple):
    """One of several episodes that a film shows side by side."""

    episode: Episode
    pictures: Pictures
    title: str


GAP, CAPTION, MOST_WIDTH = 6, 44, 1200


def grid_columns(count: int) -> int:
    """Return the number of tiles in a row."""
    return min(count, 3 if count in (3, 5, 6, 9) else 2 if count <= 4 else 4)


def tile_size(count: int) -> tuple[int, int]:
    """Return the size of the scene in each of `count` tiles."""
    columns = grid_columns(count)
    breadth = min(480, (MOST_WIDTH - GAP * (columns + 1)) // columns) // 2 * 2
    return breadth, round(breadth * SCENE[1] / SCENE[0]) // 2 * 2


def grid_frames(tiles: Sequence[Tile], rate: float) -> Frames:
    """Return the frames of a film that shows episodes side by side, each until it ends."""
    columns, (breadth, height) = grid_columns(len(tiles)), tile_size(len(tiles))
    rows = -(-len(tiles) // columns)
    size = GAP + columns * (breadth + GAP), GAP + rows * (height + CAPTION + GAP)

    def frames(every: int) -> Iterator[Frame]:
        canvas = np.empty((size[1], size[0], 3), np.uint8)
        canvas[:] = NIGHT
        shown = []
        for i, tile in enumerate(tiles):
            x, y = GAP + i % columns * (breadth + GAP), GAP + i // columns * (height + CAPTION + GAP)
            shown.append(_ShownTile(canvas[y : y + height + CAPTION, x : x + breadth], tile, height, every))
        while not all(tile.is_over for tile in shown):
            yield Frame(canvas, {"tiles": [tile.advance() for tile in shown]})
        for _ in range(round(HOLD_SECONDS * rate / every)):
            yield Frame(canvas, {"tiles": [tile.advance() for tile in shown]})

    return frames


class _ShownTile:
    """A tile and its part of the canvas."""

    def __init__(self, place: np.ndarray, tile: Tile, height: int, every: int):
        self.tile, self.row, self.is_over = tile, 0, False
        self.scene, self.caption = place[:height], place[height:]
        self.caption[:] = PANEL
        self.pictures = zip(rows_of(tile.episode, every), tile.pictures(every), strict=True)
        write_text(self.caption, shortened(tile.title, 14, place.shape[1] - 24), 12, 4, 14, WHITE, PANEL)

    def advance(self) -> dict[str, Any]:
        """Show the next picture; after the last, keep it, darker."""
        episode = self.tile.episode
        if not self.is_over:
            row, picture = next(self.pictures)
            place(self.scene, picture)
            self.is_over, self.row = row == len(episode), min(row, len(episode) - 1)
            if self.is_over:
                self.scene[:] = self.scene // 2 + np.array(NIGHT, np.uint8) // 2
            self._caption(self.row)
        about, value = episode.about, float(episode.arrays["return"][self.row])
        return {"label": about.label, "steps": about.steps, "row": self.row, "return": value, "is_over": self.is_over}

    def _caption(self, row: int) -> None:
        episode = self.tile.episode
        text = f"return {format_number(float(episode.arrays['return'][row]))}"
        how = "terminated" if episode.about.terminated else "time limit"
        right = f"{how} after {len(episode):,}" if self.is_over else f"step {row + 1:,}"
        self.caption[22:] = PANEL
        write_text(self.caption, text, 12, 22, 13, WHITE, PANEL)
        write_text(self.caption, right, self.caption.shape[1] - 12 - text_width(right, 13), 22, 13, DIM, PANEL)
