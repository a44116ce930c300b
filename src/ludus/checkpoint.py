"""Checkpoints on disk: written whole or not at all, read only if every byte is what was written.

    checkpoints/<step>/manifest.json      what the checkpoint holds: size and SHA-256 of all that follows
    checkpoints/<step>/state.safetensors  every array but the longest
    checkpoints/blocks/<sha256>           pieces of long arrays (replay, recorded actions), named by what they hold
    checkpoints/latest                    the step to go on from

A piece that has not changed has the same name in the next checkpoint and is not written again, so what a checkpoint
of a large replay writes is what is new in it. Safetensors and JSON hold numbers and text: nothing can be executed by
reading them.
"""

import contextlib
import errno
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus import files
from ludus.retention import Retention, Saved, Shelf, by_score
from ludus.types import LudusError

FORMAT = "ludus-checkpoint-1"
FOLDER, BLOCKS, LATEST, MANIFEST, STATE = "checkpoints", "blocks", "latest", "manifest.json", "state.safetensors"
BLOCK_BYTES = 1 << 18
"""Size of a piece of a long array, unless the array is so long that it would have more than `MAX_BLOCKS` of them."""
MAX_BLOCKS = 1024
MANIFEST_BYTES = 1 << 26
"""A manifest larger than this is not read."""
MOST_DIMENSIONS = 32
HEADER_BYTES = 1 << 22
"""What `state.safetensors` may be larger than its arrays."""
LEFTOVERS = (files.PARTIAL, ".pruned-")
"""Beginnings of names that only a crash leaves behind."""


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
        """How many pieces there are; the last may be shorter."""
        return -(-self.shape[0] // self.rows)

    def size(self, index: int) -> int:
        """How many bytes a piece has."""
        rows = min(self.rows, self.shape[0] - index * self.rows)
        return rows * math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


class Snapshot(NamedTuple):
    """What a checkpoint is made from: copies, which nothing changes any more."""

    step: int
    arrays: dict[str, np.ndarray]
    blocks: dict[str, Blocks]
    record: dict[str, Any]
    """Everything that is not an array, as JSON knows it."""


def rows_per_block(shape: tuple[int, ...], dtype: Any) -> int:
    """Return how many rows one piece of an array holds."""
    row = max(1, math.prod(shape[1:]) * np.dtype(dtype).itemsize)
    return max(1, BLOCK_BYTES // row, -(-shape[0] // MAX_BLOCKS))


class Checkpoints:
    """The checkpoints of one run. One process writes; any number may read."""

    def __init__(self, run: str | Path, retention: Retention = Retention()):  # noqa: B008  a NamedTuple cannot change
        """Nothing is made before the first checkpoint."""
        self.folder = Path(run) / FOLDER
        self.retention = retention
        self.base: dict[str, list[str]] = {}
        """Names of the pieces of each long array in the checkpoint that was last written or read."""
        self.last_bytes = 0
        """How much the last `save` has written."""
        self._shelf = Shelf()

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if _is_step(path.name))

    def latest(self) -> int | None:
        """Return the step to go on from: what `latest` says, or the last there is if that is unreadable."""
        steps = self.steps()
        with contextlib.suppress(OSError, ValueError):
            step = int((self.folder / LATEST).read_text()[:32])
            if step in steps:
                return step
        return steps[-1] if steps else None

    def best(self) -> int | None:
        """Return the step of the checkpoint with the best score."""
        records = ((step, checkpoint.record) for step in self.steps() if (checkpoint := self._readable(step)))
        return next(iter(by_score((step, record.get("score")) for step, record in records)), None)

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint: all of it, or nothing that could be taken for one. OSError if the disk fails."""
        if snapshot.step in self.steps() and self._is_saved(snapshot.step):
            return  # training is deterministic: it would be the same
        files.make_folder(self.folder / BLOCKS)
        self.sweep()
        try:
            self._write(snapshot)
        except OSError:
            with contextlib.suppress(OSError):
                self.sweep()  # what is there of it may be what fills the disk
            raise
        self._prune()

    def _is_saved(self, step: int) -> bool:
        """Whether there is a good checkpoint of a step already, on which the next can build; a bad one is removed."""
        try:
            checkpoint = self.open(step)
            checkpoint.verify()
        except LudusError:
            self._remove(step)
            return False
        self.point_to(step)
        self.base = {name: list(names) for name, (*_, names) in checkpoint.blocks.items()}
        return True

    def _write(self, snapshot: Snapshot) -> None:
        self.last_bytes = 0
        names = {name: self._write_blocks(name, blocks) for name, blocks in snapshot.blocks.items()}
        partial, final = self.folder / f"{files.PARTIAL}{snapshot.step}", self.folder / str(snapshot.step)
        if not self.folder.is_dir():  # or it would be made anew
            raise OSError(errno.ENOENT, "the run folder was moved or removed")
        files.make_folder(partial)
        state, written = as_safetensors(snapshot.arrays), {}
        for name, data in ((STATE, state), (MANIFEST, None)):
            data = _manifest(snapshot, written, names) if data is None else data
            files.write(partial / name, [data])
            written[name] = {"size": len(data), "sha256": _sha256(data)}
            self.last_bytes += len(data)
        files.sync_folder(partial)
        files.replace(partial, final)
        try:
            self._verify(snapshot, names)
        except LudusError:
            self._remove(snapshot.step)  # it is none
            raise
        self.point_to(snapshot.step)
        self.base = names

    def point_to(self, step: int) -> None:
        """Let `latest` name a step."""
        files.write_whole(self.folder / LATEST, f"{step}\n".encode())

    def drop_after(self, step: int) -> list[int]:
        """Remove every checkpoint later than `step`, from which the run goes on; return which."""
        self.point_to(step)
        dropped = [other for other in self.steps() if other > step]
        for other in dropped:
            self._remove(other)
        self.sweep()
        self._prune()  # which a crash may have kept the run from
        return dropped

    def sweep(self) -> None:
        """Remove what a crash has left half done."""
        for folder in (self.folder, self.folder / BLOCKS):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name.startswith(LEFTOVERS):
                    files.remove(path)

    def open(self, step: int) -> "Checkpoint":
        """Read what a checkpoint says it holds; LudusError if that is not what was written."""
        return Checkpoint(self.folder, step)

    def _write_blocks(self, name: str, blocks: Blocks) -> list[str]:
        """Write the pieces that are new and return the names of all."""
        names, known = [], self.base.get(name, [])
        folder, fresh = self.folder / BLOCKS, False
        for index in range(blocks.num_blocks):
            piece = blocks.changed.get(index)
            if piece is None and index < len(known):
                names.append(known[index])
                continue
            # What was never written is still what arrays are made with: zeros.
            data = bytes(blocks.size(index)) if piece is None else _raw(piece)
            names.append(_sha256(data))
            path = folder / names[-1]
            if not self._is_there(path, len(data)):
                partial = folder / f"{files.PARTIAL}{path.name}"
                files.write(partial, [data])
                files.rename(partial, path)
                self.last_bytes += len(data)
                fresh = True
        if fresh:
            files.sync_folder(folder)
        return names

    def _is_there(self, path: Path, size: int) -> bool:
        """Whether a piece was written before, and is still what it was."""
        with contextlib.suppress(LudusError):
            _verified(path, size, path.name, size)
            return True
        return False

    def _verify(self, snapshot: Snapshot, names: dict[str, list[str]]) -> None:
        """Read back what was just written; a disk that lies is found out before an older checkpoint goes."""
        checkpoint = self.open(snapshot.step)
        checkpoint.state_bytes()
        for name, blocks in snapshot.blocks.items():
            for index in blocks.changed:
                checkpoint.block(names[name][index], blocks.size(index))

    def _prune(self) -> None:
        """Remove checkpoints that need not be kept, then pieces that no checkpoint names."""
        shelf, steps = self._shelf, self.steps()
        for step in shelf.saved.keys() - set(steps):
            shelf.drop(step)
        for step in steps:
            if step not in shelf.saved and (checkpoint := self._readable(step)):
                shelf.add(checkpoint.saved)
        while (step := self.retention.next_to_go(shelf)) is not None:
            self._remove(step)
        if shelf.saved.keys() != set(self.steps()):
            return  # a checkpoint whose manifest is unreadable may need any of them
        blocks = self.folder / BLOCKS
        for path in blocks.iterdir() if blocks.is_dir() else ():
            if _is_hash(path.name) and path.name not in shelf.uses:
                files.remove(path)

    def _readable(self, step: int) -> "Checkpoint | None":
        with contextlib.suppress(LudusError):
            return self.open(step)
        return None

    def _remove(self, step: int) -> None:
        pruned = self.folder / f".pruned-{step}"
        files.remove(pruned)
        files.replace(self.folder / str(step), pruned)  # half removed, it must not look like a checkpoint
        self._shelf.drop(step)
        files.remove(pruned)


class Checkpoint:
    """One checkpoint, read step by step: first what it says it holds, then, if that is wanted, the arrays."""

    def __init__(self, folder: Path, step: int):
        """Read the manifest."""
        self.folder, self.path = folder, folder / str(step)
        for path in (self.path, folder / BLOCKS):
            if path.is_symlink():
                raise LudusError(f"{path}: is a link out of the run")
        manifest = self._manifest()
        self.record: dict[str, Any] = manifest["record"]
        self.arrays = {name: Shape(tuple(shape), dtype) for name, (dtype, shape) in manifest["arrays"].items()}
        self.blocks = {
            name: (tuple(entry["shape"]), entry["dtype"], entry["rows"], entry["sha256"])
            for name, entry in manifest["blocks"].items()
        }
        self._state = manifest["files"][STATE]
        if manifest["step"] != step:
            raise LudusError(f"{self.path}: is the checkpoint of step {manifest['step']}, renamed")

    @property
    def saved(self) -> Saved:
        """What it takes on the disk, and what decides whether it is kept."""
        blocks = [
            (name, Blocks(shape, dtype, rows, {}).size(index))
            for shape, dtype, rows, names in self.blocks.values()
            for index, name in enumerate(names)
        ]
        record, size = self.record, self._state["size"] + (self.path / MANIFEST).stat().st_size
        return Saved(int(self.path.name), size, tuple(blocks), record.get("score"), record.get("ordinal", 0))

    def stated(self, prefix: str = "") -> dict[str, Shape]:
        """Return the shapes of the arrays it holds, of those whose names begin so."""
        shapes = self.arrays | {name: Shape(shape, dtype) for name, (shape, dtype, _, _) in self.blocks.items()}
        return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}

    def read(self, expected: dict[str, Shape], prefix: str = "") -> dict[str, np.ndarray]:
        """Return the arrays whose names begin with `prefix`, if they are just those that are expected.

        That is checked before memory is taken.
        """
        stated = self.stated(prefix)
        if difference := sorted(stated.keys() ^ expected.keys()):
            where = "is missing" if difference[0] in expected else "is not known here"
            raise LudusError(f"{self.path}: {difference[0]} {where}; it was written with other settings")
        for name, shape in expected.items():
            if not shape.fits(stated[name]) or len(shape.shape) != len(stated[name].shape):
                raise LudusError(f"{self.path}: {name} is {stated[name]}, but {shape} is expected")
        arrays = {name: array for name, array in self._state_arrays().items() if name in expected}
        return arrays | {name: self._long_array(name) for name in self.blocks if name in expected}

    def verify(self) -> None:
        """Read everything; LudusError at the first file that is not what was written."""
        self.state_bytes()
        for shape, dtype, rows, names in self.blocks.values():
            blocks = Blocks(shape, dtype, rows, {})
            for index, name in enumerate(names):
                self.block(name, blocks.size(index))

    def state_bytes(self) -> bytes:
        """Return the file with the short arrays, verified."""
        most = HEADER_BYTES + sum(_nbytes(shape) for shape in self.arrays.values())
        return _verified(self.path / STATE, self._state["size"], self._state["sha256"], most)

    def block(self, name: str, size: int) -> bytes:
        """Return one piece of a long array, verified."""
        return _verified(self.folder / BLOCKS / name, size, name, size)

    def _state_arrays(self) -> dict[str, np.ndarray]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            stored = load(self.state_bytes())
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise LudusError(f"{self.path / STATE}: is not a safetensors file ({error})") from error
        if stored.keys() != self.arrays.keys():
            raise LudusError(f"{self.path / STATE}: holds other arrays than the manifest speaks of")
        arrays = {}
        for name, shape in self.arrays.items():
            dtype = _dtype(shape.dtype)
            if name not in stored or stored[name].shape != shape.shape or stored[name].itemsize != dtype.itemsize:
                raise LudusError(f"{self.path / STATE}: {name} is not the array that the manifest speaks of")
            arrays[name] = stored[name].view(dtype)
        return arrays

    def _long_array(self, name: str) -> np.ndarray:
        shape, dtype, rows, names = self.blocks[name]
        blocks = Blocks(shape, dtype, rows, {})
        array = np.empty(math.prod(shape) * _dtype(dtype).itemsize, np.uint8)
        start = 0
        for index in range(blocks.num_blocks):
            size = blocks.size(index)
            array[start : start + size] = np.frombuffer(self.block(names[index], size), np.uint8)
            start += size
        return array.view(_dtype(dtype)).reshape(shape)

    def _manifest(self) -> dict[str, Any]:
        path = self.path / MANIFEST
        data = _bytes(path, MANIFEST_BYTES)
        try:
            manifest = json.loads(data)
            told, stated = manifest.pop("sha256"), manifest["format"]
            if stated != FORMAT:
                raise LudusError(f"{path}: format {str(stated)[:40]!r} is not {FORMAT!r}")
            if not isinstance(told, str) or data != _signed(manifest) or _sha256(_canonical(manifest)) != told:
                raise LudusError(f"{path}: is damaged (its SHA-256 is not what it says)")
            _check_manifest(manifest)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LudusError(f"{path}: is not a manifest ({type(error).__name__}: {str(error)[:80]})") from error
        return manifest


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise ValueError (or KeyError, TypeError) if a manifest, though undamaged, makes no sense."""
    record = manifest["record"]
    if not isinstance(record, dict) or type(manifest["step"]) is not int:
        raise ValueError("record or step")
    if type(record.get("score")) not in (float, int, type(None)) or not _is_count(record.get("ordinal", 0)):
        raise ValueError("score or ordinal")
    state = manifest["files"][STATE]
    if not _is_count(state["size"]) or not _is_hash(state["sha256"]):
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
        if type(hashes) is not list or len(hashes) != -(-shape[0] // rows) or not all(map(_is_hash, hashes)):
            raise ValueError(name)


def _check_shape(name: str, shape: Any) -> None:
    if type(shape) is not list or len(shape) > MOST_DIMENSIONS or not all(map(_is_count, shape)):
        raise ValueError(f"shape of {name}")
    if not all(math.prod(shape[:i]) < 2**48 for i in range(len(shape) + 1)):
        raise ValueError(f"size of {name}")


def _raw(array: np.ndarray) -> memoryview:
    """Return the bytes of an array without a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _manifest(snapshot: Snapshot, written: dict[str, Any], names: dict[str, list[str]]) -> bytes:
    return _signed(
        {
            "format": FORMAT,
            "step": snapshot.step,
            "files": written,
            "arrays": {name: [str(array.dtype), list(array.shape)] for name, array in snapshot.arrays.items()},
            "blocks": {
                name: {"shape": list(b.shape), "dtype": b.dtype, "rows": b.rows, "sha256": names[name]}
                for name, b in snapshot.blocks.items()
            },
            "record": snapshot.record,
        }
    )


def _signed(manifest: dict[str, Any]) -> bytes:
    digest = _sha256(_canonical(manifest))
    return json.dumps({**manifest, "sha256": digest}, sort_keys=True, indent=1, allow_nan=False).encode()


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, allow_nan=False).encode()


def as_safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """Return arrays as the content of a safetensors file."""
    from safetensors.numpy import save

    # Types that safetensors has no name for, such as JAX's small floats, are stored as their bits.
    plain = {name: a if a.dtype.kind in "biuf" else a.view(f"u{a.dtype.itemsize}") for name, a in arrays.items()}
    return save({name: np.array(array, order="C") for name, array in plain.items()})


def _verified(path: Path, size: int, digest: str, most: int) -> bytes:
    """Return the content of a file, if its size and SHA-256 are as stated."""
    if size > most:
        raise LudusError(f"{path}: would have {size:,} bytes, more than its arrays take")
    data = _bytes(path, size)
    if len(data) != size:
        raise LudusError(f"{path}: has {len(data):,} bytes instead of {size:,}")
    if _sha256(data) != digest:
        raise LudusError(f"{path}: is damaged (its SHA-256 is not what the manifest says)")
    return data


def _bytes(path: Path, most: int) -> bytes:
    """Return the content of a file of at most so many bytes."""
    try:
        return files.read(path, most)
    except OSError as error:
        raise LudusError(f"{path}: cannot be read ({error.strerror})") from error


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


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _is_step(name: str) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,18}", name) is not None


def _sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()
