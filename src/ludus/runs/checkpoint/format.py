"""The format of a checkpoint on disk. One is read only if every byte is what was written.

    checkpoints/<step>/manifest.json      what the checkpoint holds: size and SHA-256 of all that follows
    checkpoints/<step>/state.safetensors  every array but the longest
    checkpoints/blocks/<sha256>           pieces of long arrays (replay, recorded actions), named by what they hold
    checkpoints/latest                    the step to go on from

A piece that has not changed has the same name in the next checkpoint and is not written again, so what a checkpoint
of a large replay writes is what is new in it. Safetensors and JSON hold numbers and text: nothing can be executed by
reading them.
"""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.runs.checkpoint.retention import Saved
from ludus.runtime import files
from ludus.types import LudusError

FORMAT = "ludus-checkpoint-1"
CHECKPOINTS, BLOCKS, LATEST, MANIFEST, STATE = "checkpoints", "blocks", "latest", "manifest.json", "state.safetensors"
BLOCK_BYTES = 1 << 18
"""Size of a piece of a long array, unless the array is so long that it would have more than `MAX_BLOCKS` of them."""
MAX_BLOCKS = 1024
MANIFEST_BYTES = 1 << 26
"""A manifest larger than this is not read."""
MOST_DIMENSIONS = 32
HEADER_BYTES = 1 << 22
"""Bytes by which `state.safetensors` may be larger than its arrays."""


class DamagedError(LudusError):
    """A checkpoint is not what was written."""


class Shape(NamedTuple):
    """Shape and type of an array; the first dimension is None where it may be any."""

    shape: tuple[int | None, ...]
    dtype: str

    def fits(self, other: "Shape") -> bool:
        """Whether an array of the other's shape is one of these."""
        return self.dtype == other.dtype and other.shape == tuple(
            theirs if mine is None else mine for mine, theirs in zip(self.shape, other.shape, strict=False)
        )

    def __str__(self) -> str:
        """As in `float32[3, 4]`."""
        return f"{self.dtype}{list(self.shape)}"


class Blocks(NamedTuple):
    """A long array, cut into pieces of `rows` rows; only those that have changed since the last checkpoint are here."""

    shape: tuple[int, ...]
    dtype: str
    rows: int
    changed: dict[int, np.ndarray]

    @property
    def num_blocks(self) -> int:
        """The number of pieces; the last may be shorter."""
        return -(-self.shape[0] // self.rows)

    def size(self, index: int) -> int:
        """The bytes of a piece."""
        rows = min(self.rows, self.shape[0] - index * self.rows)
        return rows * math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


class Broken(NamedTuple):
    """A piece of a long array that cannot be read; its rows are taken to be zeros."""

    array: str
    index: int
    count: int
    """How many pieces the array has."""
    rows: slice
    reason: str

    def __str__(self) -> str:
        """The reason and the place."""
        return f"{self.reason}; it is piece {self.index + 1} of {self.count} of {self.array}"


def rows_per_block(shape: tuple[int, ...], dtype: Any) -> int:
    """Return how many rows one piece of an array holds."""
    row = max(1, math.prod(shape[1:]) * np.dtype(dtype).itemsize)
    return max(1, BLOCK_BYTES // row, -(-shape[0] // MAX_BLOCKS))


class Checkpoint:
    """One checkpoint, read step by step: first what it says it holds, then, if that is wanted, the arrays."""

    def __init__(self, folder: Path, step: int):
        """Read the manifest."""
        self.folder, self.path = folder, folder / str(step)
        for path in (self.path, folder / BLOCKS):
            if path.is_symlink():
                raise DamagedError(f"{path}: is a link out of the run")
        manifest = self._manifest()
        self.record: dict[str, Any] = manifest["record"]
        self.arrays = {name: Shape(tuple(shape), dtype) for name, (dtype, shape) in manifest["arrays"].items()}
        self.blocks = {
            name: (tuple(entry["shape"]), entry["dtype"], entry["rows"], entry["sha256"])
            for name, entry in manifest["blocks"].items()
        }
        self._state = manifest["files"][STATE]
        if manifest["step"] != step:
            raise DamagedError(f"{self.path}: is the checkpoint of step {manifest['step']}, renamed")

    @property
    def saved(self) -> Saved:
        """The bytes it takes on the disk, and what decides whether it is kept."""
        blocks = [piece for name in self.blocks for piece in self.pieces(name)]
        record, size = self.record, self._state["size"] + (self.path / MANIFEST).stat().st_size
        return Saved(int(self.path.name), size, tuple(blocks), record.get("score"), record.get("ordinal", 0))

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file that it is made of, by its path in the folder of checkpoints."""
        names = dict.fromkeys(name for blocks in self.blocks for name, _ in self.pieces(blocks))
        return {f"{BLOCKS}/{name}": name for name in names} | {f"{self.path.name}/{STATE}": self._state["sha256"]}

    def stated(self, prefix: str = "") -> dict[str, Shape]:
        """Return the shapes of the arrays it holds, of those whose names begin so."""
        shapes = self.arrays | {name: Shape(shape, dtype) for name, (shape, dtype, _, _) in self.blocks.items()}
        return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}

    def read(
        self, expected: dict[str, Shape], prefix: str = "", broken: list[Broken] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the arrays whose names begin with `prefix`, if they are just those that are expected.

        That is checked before memory is taken. Pieces of long arrays that are damaged are added to `broken`; without
        such a list the first of them is an error.
        """
        stated = self.stated(prefix)
        if difference := sorted(stated.keys() ^ expected.keys()):
            where = "is missing" if difference[0] in expected else "is not known here"
            raise LudusError(f"{self.path}: {difference[0]} {where}; it was written with other settings")
        for name, shape in expected.items():
            if not shape.fits(stated[name]) or len(shape.shape) != len(stated[name].shape):
                raise LudusError(f"{self.path}: {name} is {stated[name]}, but {shape} is expected")
        arrays = {name: array for name, array in self.state_arrays().items() if name in expected}
        return arrays | {name: self._long_array(name, broken) for name in self.blocks if name in expected}

    def manifest_with(self, record: dict[str, Any]) -> bytes:
        """Return its manifest with another record."""
        return signed({**self._manifest(), "record": record})

    def verify(self) -> None:
        """Read everything; LudusError at the first file that is not what was written."""
        self.state_bytes()
        for name in self.blocks:
            for piece in self.pieces(name):
                self.block(*piece)

    def pieces(self, name: str) -> list[tuple[str, int]]:
        """Return name and size of each piece of a long array."""
        shape, dtype, rows, names = self.blocks[name]
        blocks = Blocks(shape, dtype, rows, {})
        return [(piece, blocks.size(index)) for index, piece in enumerate(names)]

    def state_bytes(self) -> bytes:
        """Return the file with the short arrays, verified."""
        most = HEADER_BYTES + sum(_nbytes(shape) for shape in self.arrays.values())
        return verified(self.path / STATE, self._state["size"], self._state["sha256"], most)

    def block(self, name: str, size: int) -> bytes:
        """Return one piece of a long array, verified."""
        return verified(self.folder / BLOCKS / name, size, name, size)

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Return the short arrays."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            stored = load(self.state_bytes())
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise DamagedError(f"{self.path / STATE}: is not a safetensors file ({error})") from error
        if stored.keys() != self.arrays.keys():
            raise DamagedError(f"{self.path / STATE}: holds other arrays than the manifest speaks of")
        arrays = {}
        for name, shape in self.arrays.items():
            dtype = _dtype(shape.dtype)
            if name not in stored or stored[name].shape != shape.shape or stored[name].itemsize != dtype.itemsize:
                raise DamagedError(f"{self.path / STATE}: {name} is not the array that the manifest speaks of")
            arrays[name] = stored[name].view(dtype)
        return arrays

    def _long_array(self, name: str, broken: list[Broken] | None) -> np.ndarray:
        shape, dtype, rows, names = self.blocks[name]
        array = np.zeros(math.prod(shape) * _dtype(dtype).itemsize, np.uint8)
        start = 0
        for index, (piece, size) in enumerate(self.pieces(name)):
            try:
                array[start : start + size] = np.frombuffer(self.block(piece, size), np.uint8)
            except DamagedError as error:
                lost = slice(index * rows, min((index + 1) * rows, shape[0]))
                found = Broken(name, index, len(names), lost, str(error))
                if broken is None:
                    raise DamagedError(str(found)) from error
                broken.append(found)
            start += size
        return array.view(_dtype(dtype)).reshape(shape)

    def _manifest(self) -> dict[str, Any]:
        path = self.path / MANIFEST
        data = _bytes(path, MANIFEST_BYTES)
        try:
            manifest = json.loads(data)
            told, stated = manifest.pop("sha256"), manifest["format"]
            if stated != FORMAT:
                raise DamagedError(f"{path}: format {str(stated)[:40]!r} is not {FORMAT!r}")
            if not isinstance(told, str) or data != signed(manifest) or sha256(_canonical(manifest)) != told:
                raise DamagedError(f"{path}: is damaged (its SHA-256 is not what it says)")
            _check_manifest(manifest)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path}: is not a manifest ({type(error).__name__}: {str(error)[:80]})") from error
        return manifest


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise ValueError (or KeyError, TypeError) if a manifest, though undamaged, makes no sense."""
    record = manifest["record"]
    if not isinstance(record, dict) or type(manifest["step"]) is not int:
        raise ValueError("record or step")
    if type(record.get("score")) not in (float, int, type(None)) or not _is_count(record.get("ordinal", 0)):
        raise ValueError("score or ordinal")
    state = manifest["files"][STATE]
    if not _is_count(state["size"]) or not is_hash(state["sha256"]):
        raise ValueError(STATE)
    for name, (dtype, shape) in manifest["arrays"].items():
        _dtype(dtype)
        _check_shape(name, shape)
    for name, entry in manifest["blocks"].items():
        shape, rows, hashes = entry["shape"], entry["rows"], entry["sha256"]
        _dtype(entry["dtype"])
        _check_shape(name, shape)
        if not shape or not _is_count(rows) or rows < 1:
            raise ValueError(name)
        if type(hashes) is not list or len(hashes) != -(-shape[0] // rows) or not all(map(is_hash, hashes)):
            raise ValueError(name)


def _check_shape(name: str, shape: Any) -> None:
    if type(shape) is not list or len(shape) > MOST_DIMENSIONS or not all(map(_is_count, shape)):
        raise ValueError(f"shape of {name}")
    if not all(math.prod(shape[:i]) < 2**48 for i in range(len(shape) + 1)):
        raise ValueError(f"size of {name}")


def raw(array: np.ndarray) -> memoryview:
    """Return the bytes of an array without a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def signed(manifest: dict[str, Any]) -> bytes:
    """Return a manifest as the bytes of its file, which hold its own SHA-256."""
    digest = sha256(_canonical(manifest))
    return json.dumps({**manifest, "sha256": digest}, sort_keys=True, indent=1, allow_nan=False).encode()


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, allow_nan=False).encode()


def as_safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """Return arrays as the content of a safetensors file."""
    from safetensors.numpy import save

    # Types that safetensors has no name for, such as JAX's small floats, are stored as their bits.
    plain = {name: a if a.dtype.kind in "biuf" else a.view(f"u{a.dtype.itemsize}") for name, a in arrays.items()}
    return save({name: np.array(array, order="C") for name, array in plain.items()})


def verified(path: Path, size: int, digest: str, most: int) -> bytes:
    """Return the content of a file, if its size and SHA-256 are as stated."""
    if size > most:
        raise DamagedError(f"{path}: would have {size:,} bytes, more than its arrays take")
    data = _bytes(path, size)
    if len(data) != size:
        raise DamagedError(f"{path}: has {len(data):,} bytes instead of {size:,}")
    if sha256(data) != digest:
        raise DamagedError(f"{path}: is damaged (its SHA-256 is not what the manifest says)")
    return data


def _bytes(path: Path, most: int) -> bytes:
    """Return the content of a file of at most so many bytes."""
    try:
        return files.read(path, most)
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({error.strerror})") from error


def _dtype(name: str) -> np.dtype:
    import ml_dtypes

    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9_]{1,24}", name):
        raise ValueError(f"type {str(name)[:40]!r}")
    try:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
    except TypeError as error:
        raise ValueError(f"type {name!r}") from error
    if dtype.hasobject or dtype.itemsize == 0 or dtype.kind in "mMSU":
        raise ValueError(f"type {name!r}")
    return dtype


def _nbytes(shape: Shape) -> int:
    return math.prod(n or 0 for n in shape.shape) * _dtype(shape.dtype).itemsize


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def is_hash(value: Any) -> bool:
    """Tell whether a value is a SHA-256, and so can be the name of a piece."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def sha256(data: Any) -> str:
    """Return the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
