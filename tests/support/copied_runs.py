"""Small run folders with checkpoints, and stores that fail, for what copies runs."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ludus.runs.checkpoint.format import CHECKPOINTS, Blocks
from ludus.runs.checkpoint.retention import Retention
from ludus.runs.checkpoint.store import Checkpoints, Snapshot
from ludus.runs.folder import RunFolder
from ludus.runs.storage.base import LocalFile, MissingError, RemoteStore, StorageError, Told
from ludus.runs.storage.marker import Content, Marker, read_marker, spare

CONFIG: dict[str, Any] = {"env": "jax:CartPole-v1", "num_envs": 8, "seed": 0, "algorithm": {"name": "ppo"}}


class SmallRun:
    """A run that is written as training writes one: journal, checkpoints with a long array, policies."""

    def __init__(self, path: Path, keep_last: int = 2, seed: int = 0, **config: Any):
        self.path, self.dice = path, np.random.default_rng(seed)
        self.folder = RunFolder(path)
        self.folder.create()
        self.folder.write_config({**CONFIG, **config})
        self.folder.write_identity(status="running", started=1.7e9)
        self.checkpoints = Checkpoints(path, Retention(last=keep_last))
        self.long = np.zeros((8, 1000), np.float32)
        self.step = 0

    def advance(self, rows: int = 5, size: int = 100) -> None:
        """Make some progress: rows, a checkpoint, a better policy."""
        self.step += 10
        row = {"kind": "train", "iteration": self.step, "steps": self.step, "episodes": 1, "updates": 1}
        self.folder.append([{**row, "value_loss": float(self.dice.normal())} for _ in range(rows)])
        changed = self.step // 10 % 2
        self.long[changed] = self.dice.normal(size=1000)
        blocks = {"replay": Blocks((8, 1000), "float32", 1, {i: self.long[i : i + 1].copy() for i in range(8)})}
        journal = self.folder.journal
        record = {"steps": self.step, "journal_rows": journal.rows, "journal_bytes": journal.bytes, "ordinal": 1}
        arrays = {"x": self.dice.normal(size=size).astype(np.float32)}
        self.checkpoints.save(Snapshot(self.step, arrays, blocks, record))
        policies = self.path / "policies"
        policies.mkdir(exist_ok=True)
        (policies / "best_return_pi_ckpt.safetensors").write_bytes(self.dice.bytes(300))

    def go_back(self) -> None:
        """Resume from the oldest checkpoint that is there."""
        step = self.checkpoints.steps()[0]
        record = self.checkpoints.open(step).record
        self.checkpoints.drop_after(step)
        self.folder.journal.cut(record["journal_rows"], record["journal_bytes"])
        self.step = step


def contents(run: Path) -> dict[str, bytes]:
    """Return what is in a run folder, the copying's own state aside."""
    files = (path for path in run.rglob("*") if path.is_file())
    named = {path.relative_to(run).as_posix(): path.read_bytes() for path in files}
    return {name: data for name, data in named.items() if not name.startswith("storage/") and "/." not in name}


class Faulty:
    """A store that fails now and then, before or after it did what it was asked to, or keeps half of a file."""

    KINDS = ("refuses", "is cut", "keeps half", "keeps other bytes", "does not say that it did it")

    def __init__(self, store: RemoteStore, seed: int = 0, rate: float = 0.1):
        self.store, self.name, self.dice, self.rate = store, store.name, random.Random(seed), rate
        self.faults: list[str] = []

    def _fault(self, kinds: tuple[str, ...]) -> str | None:
        if self.dice.random() >= self.rate:
            return None
        self.faults.append(self.dice.choice(kinds))
        return self.faults[-1]

    def put(self, path: str, source: LocalFile) -> None:
        fault = self._fault(self.KINDS)
        if fault in ("refuses", "is cut"):
            raise StorageError(f"{fault}: 503")
        if fault in ("keeps half", "keeps other bytes"):
            self.store.put(path, Damaged(source, fault))
            if self.dice.random() < 0.5:
                raise StorageError("cut")
            return
        self.store.put(path, source)
        if fault:
            raise StorageError("the answer was lost")

    def told(self, path: str) -> Told:
        if self._fault(("refuses",)):
            raise StorageError("429")
        return self.store.told(path)

    def pieces(self, path: str, sha256: str | None = None) -> Iterator[bytes]:
        if self._fault(("refuses",)):
            raise StorageError("500")
        return self.store.pieces(path, sha256)

    def names(self, folder: str) -> list[str]:
        return self.store.names(folder)

    def remove(self, path: str) -> None:
        if self._fault(("refuses",)):
            raise StorageError("500")
        self.store.remove(path)


class Damaged(LocalFile):
    """A source of which not everything arrives, or not as it was."""

    def __init__(self, source: LocalFile, fault: str):
        self._source, self.pace = source, source.pace
        self.size = source.size // 2 if fault == "keeps half" else source.size
        self._flip = fault != "keeps half"
        self.digests = source.digests

    def read(self, offset: int, size: int, is_sent: bool = True) -> bytes:
        data = self._source.read(offset, min(size, self.size - offset), is_sent)
        return bytes([data[0] ^ 1]) + data[1:] if self._flip and data else data


class Dictionary:
    """A store in memory; `watch` is called after everything that changes it."""

    def __init__(self, watch: Callable[[], None] = lambda: None):
        self.name, self.files, self.watch = "memory", {}, watch
        self.sent: list[str] = []
        self.removed: list[str] = []

    def put(self, path: str, source: LocalFile) -> None:
        self.files[path] = b"".join(source.pieces())
        self.sent.append(path)
        self.watch()

    def told(self, path: str) -> Told:
        return Told(len(self._content(path)))

    def pieces(self, path: str, sha256: str | None = None) -> Iterator[bytes]:
        return iter([self._content(path)])

    def _content(self, path: str) -> bytes:
        if path not in self.files:
            raise MissingError(path)
        return self.files[path]

    def close(self) -> None:
        pass

    def names(self, folder: str) -> list[str]:
        below = [path.removeprefix(f"{folder}/" if folder else "") for path in self.files if path.startswith(folder)]
        return sorted({name.split("/")[0] + "/" * ("/" in name) for name in below})

    def remove(self, path: str) -> None:
        self.files.pop(path, None)
        self.removed.append(path)
        self.watch()


def check_copy(files: dict[str, bytes], folder: str) -> Marker | None:
    """Whatever lies in a store at any moment: all that its marker names can be had, and `latest` is whole."""
    store = Dictionary()
    store.files = files
    marker = read_marker(store, folder)
    if marker is None:
        return None
    found = {path: content_at(files, folder, path, content) for path, content in marker.files.items()}
    if f"{CHECKPOINTS}/latest" in found:
        step = int(found[f"{CHECKPOINTS}/latest"])
        manifest = json.loads(found[f"{CHECKPOINTS}/{step}/manifest.json"])
        assert (
            hashed(found[f"{CHECKPOINTS}/{step}/state.safetensors"]) == manifest["files"]["state.safetensors"]["sha256"]
        )
        for name in manifest["blocks"]["replay"]["sha256"]:
            assert hashed(found[f"{CHECKPOINTS}/blocks/{name}"]) == name
        assert manifest["record"]["journal_bytes"] <= len(found["metrics.jsonl"])
    return marker


def content_at(files: dict[str, bytes], folder: str, path: str, content: Content) -> bytes:
    """Return the content of a file as a restore would find it."""
    for place in (path, spare(content)):
        data = files.get(f"{folder}/{place}", b"")[: content.size]
        if hashed(data) == content.sha256:
            return data
    raise AssertionError(f"{path} is lost")


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
