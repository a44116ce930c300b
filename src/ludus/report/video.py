"""From a recorded episode and its pictures to a film: mp4 (H.264) or gif, and a side file that says what was drawn.

The side file lies beside the film and ends in `.jsonl`: a first line about the film, then one for each frame with the
very numbers that were drawn there.
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

from ludus import files
from ludus.report.episode import Episode
from ludus.report.ink import DIM, NIGHT, PANEL, WHITE, blit, fitted, number, width, write
from ludus.report.overlay import SCENE, Overlay
from ludus.types import LudusError

FORMAT = "ludus-video-1"
HOLD_SECONDS = 1.0
"""How long the last picture stays."""
GIF_WIDTH, GIF_RATE, GIF_COLORS = 640, 25, 96
QUALITY = {"crf": "20", "preset": "veryfast"}


class Frame(NamedTuple):
    """What the viewer sees, and what the side file says of it."""

    pixels: np.ndarray
    drawn: dict[str, Any]


Frames = Callable[[int], Iterator[Frame]]
"""Makes every n-th frame of a film, from the first, as often as it is called."""
Pictures = Callable[[int], Iterable[np.ndarray]]
"""Makes the pictures of every n-th of an episode's T observations, and the one after its last step."""


def write_film(path: Path, frames: Frames, rate: float, about: dict[str, Any], gif: bool = False) -> list[Path]:
    """Write `path` (an .mp4), its side file and, if asked for, a gif; each appears whole or not at all."""
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
    """An H.264 film that grows frame by frame."""

    def __init__(self, path: Path, rate: float, threads: int = 0):
        """Write to a path; the size is that of the first frame. `threads` is the encoder's number, 0 for its own."""
        self.path, self.rate, self.threads = path, Fraction(rate).limit_denominator(1000), threads

    def __enter__(self) -> "Mp4":
        """Open the file."""
        import av

        self.container = av.open(str(self.path), "w", format="mp4", options={"movflags": "+faststart"})
        self.stream: Any = None
        return self

    def add(self, pixels: np.ndarray) -> None:
        """Add a frame of bytes `[h, w, 3]`; H.264 needs even sides, so a row or column may be repeated."""
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
        """Write what the encoder still holds, and close."""
        with contextlib.closing(self.container):
            if self.stream is not None:
                self.container.mux(self.stream.encode())


def write_gif(path: Path, frames: Frames, rate: float, breadth: int = GIF_WIDTH, most_rate: float = GIF_RATE) -> None:
    """Write a gif: smaller, at most `most_rate` frames a second, with one palette for all of it."""
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
        return image.copy()  # the array is drawn over by the next frame
    return image.resize((breadth, round(image.height * breadth / image.width)), Image.Resampling.LANCZOS)


@contextlib.contextmanager
def _whole(path: Path) -> Generator[Path]:
    """Give a path to write to; what was written there gets its name only if nothing went wrong."""
    with files.whole(path) as partial:
        os.close(files.open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield partial


def episode_frames(
    episode: Episode, pictures: Pictures, rate: float, action_names: Sequence[str] = (), note: str = ""
) -> Frames:
    """Return the frames of one episode; the last picture stays for a while."""

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
    """Return the rows that every n-th picture is of, and the number after the last, for the picture of the end."""
    return [*range(0, len(episode), every), len(episode)]


def about_episode(episode: Episode) -> dict[str, Any]:
    """Return what the first line of the side file says of an episode."""
    about = asdict(episode.about)
    return {"episode": {name: value for name, value in about.items() if name != "env_options"}, "steps": len(episode)}


def place(scene: np.ndarray, picture: np.ndarray) -> None:
    """Put a picture into its place, as large as it fits; one of the right size is only copied."""
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
    return f"{how} after {len(episode):,} steps · return {number(float(episode.arrays['return'][-1]))}"


def _banner(scene: np.ndarray, text: str) -> None:
    """Write a line into the upper left corner of a scene that has come to its end."""
    ground = PANEL
    breadth = width(text, 14) + 24
    scene[12:40, 12 : 12 + breadth] = ground
    write(scene, text, 24, 17, 14, WHITE, ground)


class Tile(NamedTuple):
    """One of several episodes that are seen side by side."""

    episode: Episode
    pictures: Pictures
    title: str


GAP, CAPTION, MOST_WIDTH = 6, 44, 1200


def grid_columns(count: int) -> int:
    """Return how many tiles stand in a row."""
    return min(count, 3 if count in (3, 5, 6, 9) else 2 if count <= 4 else 4)


def tile_size(count: int) -> tuple[int, int]:
    """Return the size of the scene in each of so many tiles."""
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
            shown.append(_Shown(canvas[y : y + height + CAPTION, x : x + breadth], tile, height, every))
        while not all(tile.is_over for tile in shown):
            yield Frame(canvas, {"tiles": [tile.advance() for tile in shown]})
        for _ in range(round(HOLD_SECONDS * rate / every)):
            yield Frame(canvas, {"tiles": [tile.advance() for tile in shown]})

    return frames


class _Shown:
    """A tile in its place on the canvas."""

    def __init__(self, place: np.ndarray, tile: Tile, height: int, every: int):
        self.tile, self.row, self.is_over = tile, 0, False
        self.scene, self.caption = place[:height], place[height:]
        self.caption[:] = PANEL
        self.pictures = zip(rows_of(tile.episode, every), tile.pictures(every), strict=True)
        write(self.caption, fitted(tile.title, 14, place.shape[1] - 24), 12, 4, 14, WHITE, PANEL)

    def advance(self) -> dict[str, Any]:
        """Show the next picture; after the last, go on showing it, in the dark."""
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
        text = f"return {number(float(episode.arrays['return'][row]))}"
        how = "terminated" if episode.about.terminated else "time limit"
        right = f"{how} after {len(episode):,}" if self.is_over else f"step {row + 1:,}"
        self.caption[22:] = PANEL
        write(self.caption, text, 12, 22, 13, WHITE, PANEL)
        write(self.caption, right, self.caption.shape[1] - 12 - width(right, 13), 22, 13, DIM, PANEL)
