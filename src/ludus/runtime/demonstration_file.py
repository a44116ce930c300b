"""Demonstrations on disk: one safetensors file, or a folder of several. Nothing can be executed by reading them.

A file holds, for N steps of E whole episodes one after the other:

    obs, obs/<leaf>              [N, ...]   what was observed when the action was chosen
    action, action/<leaf>        [N, ...]   the action as the environment was given it
    reward                       [N]        float32
    terminated, truncated        [N]        booleans: one of both is true at an episode's last step, and nowhere else
    final_obs, final_obs/<leaf>  [E, ...]   what was observed after each last step; absent if nobody wrote it down
    action_mask                  [N, size]  booleans: which actions were allowed; absent where all were

A `<leaf>` is the path of a part of a Dict or Tuple space, such as `arm/0`; plain spaces have none. Types are those of
the spaces. The header holds texts: `format`, `observation_space` and `action_space` (JSON, as `spaces.to_data` gives
them), `env`, `about` (JSON) and `sha256`, which is of all else (`demonstrations.checksum`).

Of a folder all files `*.safetensors` are read, in the order of their names; each holds whole episodes.
"""

import contextlib
import hashlib
import json
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

from ludus.runtime import files
from ludus.runtime.demonstrations import FORMAT, Demonstrations, checksum, from_named, joined
from ludus.spaces import from_data
from ludus.types import LudusError

SUFFIX = ".safetensors"
FILE_BYTES, HEADER_BYTES, MOST_FILES = 1 << 35, 1 << 24, 10_000
"""The most bytes that a file and its header may have, and the most files of a folder."""
SHARD_BYTES = 1 << 30
"""Of a folder, files are about so large at most, unless a single episode is larger."""
TEXTS = {"format", "observation_space", "action_space", "env", "about", "sha256"}


def write_demonstrations(demonstrations: Demonstrations, path: str | Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write demonstrations: a file, if its name ends in `.safetensors`; else a new folder of files."""
    path = Path(path)
    if path.exists():
        raise LudusError(f"{path}: exists already; choose another name, or remove it")
    try:
        files.make_folder(path.parent)
        if path.suffix == SUFFIX:
            files.write_whole(path, _as_bytes(demonstrations))
            return
        files.make_folder(path)
        for number, part in enumerate(_shards(demonstrations, shard_bytes)):
            files.write_whole(path / f"demonstrations-{number:05}{SUFFIX}", _as_bytes(part))
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_demonstrations(path: str | Path) -> Demonstrations:
    """Read a file or folder of demonstrations; LudusError in one line if it is damaged, or holds something else."""
    path, parts = Path(path), []
    for file in _files(path):
        with _naming(file):
            header, arrays = _read(file)
            parts.append(_demonstrations(header, arrays))
    with _naming(path):
        return joined(parts)


def stated_sha256(path: str | Path) -> str:
    """Return the SHA-256 that a file states in its header, or that of those of a folder; only headers are read."""
    found = [_read(file, with_arrays=False)[0]["sha256"] for file in _files(Path(path))]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def _as_bytes(demonstrations: Demonstrations) -> bytes:
    from safetensors.numpy import save

    header, arrays = demonstrations.header(), demonstrations.arrays()
    return save(arrays, {**header, "sha256": checksum(header, arrays)})


def _shards(demonstrations: Demonstrations, most: int) -> Iterator[Demonstrations]:
    """Cut demonstrations into pieces of whole episodes."""
    row = sum(x.nbytes for x in demonstrations.arrays().values()) / len(demonstrations)
    first, size = 0, 0.0
    for number, length in enumerate(demonstrations.lengths.tolist()):
        if size and size + row * length > most:
            yield demonstrations.episodes(np.arange(first, number))
            first, size = number, 0.0
        size += row * length
    yield demonstrations.episodes(np.arange(first, demonstrations.num_episodes)) if first else demonstrations


def _files(path: Path) -> list[Path]:
    """Return the files of demonstrations that a path stands for."""
    if path.is_dir():
        found = sorted(path.glob(f"*{SUFFIX}"))[: MOST_FILES + 1]
        if not 0 < len(found) <= MOST_FILES:
            raise LudusError(f"{path}: holds {'too many' if found else 'no'} files of demonstrations (*{SUFFIX})")
        return found
    if not path.is_file():
        raise LudusError(f"{path}: no such file of demonstrations")
    return [path]


@contextlib.contextmanager
def _naming(file: Path) -> Generator[None]:
    """Name the file in what is wrong with it."""
    try:
        yield
    except LudusError as error:
        told = str(error).removeprefix("demonstrations: ").removeprefix(f"{file}: ")
        raise LudusError(f"{file}: {told}") from error
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise LudusError(
            f"{file}: is damaged, or holds no demonstrations ({type(error).__name__}: {str(error)[:100]})"
        ) from error


def _read(file: Path, with_arrays: bool = True) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return header and arrays of a file; its checksum is compared if all of it is read."""
    from safetensors import SafetensorError, safe_open

    try:
        _check_size(file)
        with safe_open(file, framework="numpy") as handle:
            header = handle.metadata() or {}
            names = handle.keys() if with_arrays else ()
            arrays = {name: handle.get_tensor(name) for name in names}
        if header.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        if header.keys() != TEXTS:
            raise ValueError(f"its header has {sorted(header)}")
        if with_arrays and checksum({k: v for k, v in header.items() if k != "sha256"}, arrays) != header["sha256"]:
            raise ValueError("its SHA-256 is not what it says")
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise LudusError(f"{file}: is damaged, or holds no demonstrations ({str(error)[:120]})") from error
    return header, arrays


def _check_size(file: Path) -> None:
    size = file.stat().st_size
    if size > FILE_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than the {FILE_BYTES:,} it may have")
    with file.open("rb") as handle:
        header = int.from_bytes(handle.read(8), "little")
    if size < 8 or header > HEADER_BYTES:
        raise ValueError(f"its header has {header:,} bytes" if size else "it is empty")


def _demonstrations(header: dict[str, str], arrays: dict[str, np.ndarray]) -> Demonstrations:
    """Return what a file holds; anything may be raised if it makes no sense."""
    spaces = [from_data(json.loads(header[f"{kind}_space"])) for kind in ("observation", "action")]
    made = from_named(arrays, *spaces, header["env"], json.loads(header["about"]))
    held = made.arrays()
    if held.keys() != arrays.keys():
        raise ValueError(f"it holds {sorted(held.keys() ^ arrays.keys())[0]} besides")
    for name, array in held.items():
        if array.dtype != arrays[name].dtype:
            raise ValueError(f"{name} is {arrays[name].dtype}, not {array.dtype}")
    return made
