"""Damages checkpoints, policies and critics in every way we can think of, and reads them."""

import contextlib
import json
import os
import pickle
import random
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from ludus.algorithms.critic import load_critic
from ludus.algorithms.policy import load_policy
from ludus.algorithms.policy_file import checksum
from ludus.runs.checkpoint.format import sha256, signed
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_config, read_identity
from ludus.runs.journal import read_journal
from ludus.runs.journal_repair import Remains
from ludus.training.progress import RECORD
from ludus.training.restore import CheckpointSource
from ludus.training.resume import rebuilt
from ludus.training.run_config import MEANING, meaning_of
from ludus.training.state_arrays import differences, outline, shapes
from ludus.training.trainer import Trainer
from ludus.types import LudusError

Chance = random.Random
FLAG = "/tmp/ludus-fuzz-was-executed"


class Victim:
    """A run, what its latest checkpoint truly holds, and the means to read it as a resume does."""

    def __init__(self, run: Path):
        """Read what is true."""
        self.run = run
        self.trainer, _ = rebuilt(Trainer, run, read_config(run), verbose=False)
        self.expected, self.outline = shapes(self.trainer.state), outline(self.trainer.state)
        self.id = read_identity(run)["id"]
        self.meaning = meaning_of(self.trainer.algorithm, self.trainer.env, self.trainer.settings)
        self.rows = read_journal(run)
        source = CheckpointSource(run, "latest", False, print)
        self.step, self.record = source.step, source.record
        self.true = source.whole(self.outline, self.expected, self.trainer.env.num_envs).arrays

    def read(self, run: Path, fallback: bool) -> str:
        """Read a damaged copy as a resume does; say "rejected" or "identical", raise if it is neither."""
        try:
            source = CheckpointSource(run, "latest", fallback, lambda _: None)
            source.check(self.id, self.meaning)
            source.spec(self.trainer.loop.spec)
            source.check_journal()
            source.compiler_options()
            left = source.whole(self.outline, self.expected, self.trainer.env.num_envs)
        except LudusError as error:
            text = str(error)
            assert str(run) in text or text.startswith(MEANING), f"names no file: {text}"
            assert len(text) > len(str(run)) + 10 and "\n" not in text, text
            return "rejected"
        if source.journal is not None:
            self.check_rows(source.journal)
            return "rows lost"
        if fallback and source.step != self.step:
            return "fell back"
        assert self.completed(source.record) == self.record, "was read, but its record is not what was written"
        unlike = differences(left.arrays, self.true)
        if fallback and source.broken:
            pieces = ("learner/replay/", "env/actions")
            assert all(name.startswith(pieces) for name in unlike), f"was read, and lost more than its pieces: {unlike}"
            assert left.lost, "was read, but not what was written, and nobody is told"
            return "mended"
        assert unlike == [], "was read, but is not what was written"
        return "identical"

    def completed(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a record with the hyperparameters that it does not name: those have their defaults."""
        described = self.record["meaning"]["algorithm"] | record["meaning"]["algorithm"]
        return {**record, "meaning": {**record["meaning"], "algorithm": described}}

    def check_rows(self, left: Remains) -> None:
        """Hold what is said to be left of a journal against what it was."""
        assert left.first + len(left.later) <= left.expected <= len(self.rows)
        assert all({"seq": number, **row} == self.rows[number] for number, row in left.later)


def _file(run: Path, chance: Chance) -> Path:
    """Choose one of the files that the latest checkpoint needs."""
    folder = run / "checkpoints"
    step = (folder / "latest").read_text().strip()
    manifest = json.loads((folder / step / "manifest.json").read_bytes())
    blocks = [folder / "blocks" / name for entry in manifest["blocks"].values() for name in entry["sha256"]]
    own = [folder / step / "manifest.json", folder / step / "state.safetensors"]
    return chance.choice([*own, chance.choice(blocks)] if blocks else own)


def flip(run: Path, chance: Chance) -> None:
    path = _file(run, chance)
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 1, 2, 9])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(run: Path, chance: Chance) -> None:
    path = _file(run, chance)
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def extend(run: Path, chance: Chance) -> None:
    path = _file(run, chance)
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.choice([1, 8, 5000])))


def swap(run: Path, chance: Chance) -> None:
    """Swap a file with that of another checkpoint, or two pieces."""
    folder = run / "checkpoints"
    one = _file(run, chance)
    others = [p for p in folder.rglob("*") if p.is_file() and p.name != "latest" and p.read_bytes() != one.read_bytes()]
    other = chance.choice([p for p in others if p.name == one.name] or others)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def remove(run: Path, chance: Chance) -> None:
    _file(run, chance).unlink()


def rename(run: Path, chance: Chance) -> None:
    """Let a checkpoint stand under the number of another, or a file under another name."""
    folder = run / "checkpoints"
    steps = Checkpoints(run).steps()
    if chance.random() < 0.5:
        shutil.rmtree(folder / str(steps[-1]))
        shutil.move(folder / str(steps[0]), folder / str(steps[-1]))
    else:
        path = _file(run, chance)
        path.rename(path.with_name("renamed"))


def link(run: Path, chance: Chance) -> None:
    """Replace a file or a folder by a link to its like outside."""
    path = _file(run, chance)
    path = chance.choice([path, path.parent])
    outside = run.parent / "outside"
    if outside.is_dir():
        shutil.rmtree(outside)
    outside.unlink(missing_ok=True)
    shutil.move(path, outside)
    path.symlink_to(outside)


def odd_file(run: Path, chance: Chance) -> None:
    """Put something in place of a file that is none, or one that would execute something if it were trusted."""
    path = _file(run, chance)
    path.unlink()
    kind = chance.randrange(4)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.write_bytes(pickle.dumps(Hostile()))
    else:
        path.write_bytes(b"")


def huge_file(run: Path, chance: Chance) -> None:
    """Let a file claim to be enormous; it takes no room on disk."""
    os.truncate(_file(run, chance), chance.choice([1 << 30, 1 << 38]))


def odd_manifest(run: Path, chance: Chance) -> None:
    """Write a manifest whose hash is right and whose content is not."""
    folder = run / "checkpoints"
    path = folder / (folder / "latest").read_text().strip() / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest.pop("sha256")
    chance.choice([_odd_shape, _odd_type, _odd_value, _odd_size, _odd_record])(manifest, chance)
    with contextlib.suppress(ValueError, RecursionError):
        path.write_bytes(signed(manifest))
        return
    path.write_bytes(json.dumps({**manifest, "sha256": "0" * 64}).encode())


def _odd_shape(manifest: dict, chance: Chance) -> None:
    name = chance.choice(list(manifest["arrays"]))
    shape = chance.choice([[2**63], [2**40, 2**40], [-1], [1] * 100, "ab", None, [1.5], [True], [7], [2**31, 2]])
    if manifest["blocks"] and chance.random() < 0.4:
        manifest["blocks"][chance.choice(list(manifest["blocks"]))]["shape"] = shape
    else:
        manifest["arrays"][name][1] = shape


def _odd_type(manifest: dict, chance: Chance) -> None:
    kind = chance.choice(
        ["object", "O", "float64", "str", "datetime64", "../x", "void", 5, None, "int4", "finfo", "f4,f8"]
    )
    if manifest["blocks"] and chance.random() < 0.3:
        manifest["blocks"][chance.choice(list(manifest["blocks"]))]["dtype"] = kind
    else:
        name = chance.choice(list(manifest["arrays"]))
        manifest["arrays"][name][0] = kind if kind != manifest["arrays"][name][0] else "uint8"


def _odd_value(manifest: dict, chance: Chance) -> None:
    """Put something wrong anywhere."""
    node: Any = {name: value for name, value in manifest.items() if name != "record"}
    top = node
    while True:
        key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.7:
            node = node[key]
            continue
        break
    wrong = [
        None,
        [],
        {},
        "\ud800",
        -1,
        2**70,
        "../../etc/passwd",
        [[[]]],
        True,
        1e308,
        "a" * 5000,
        deep(900),
        deep(300),
    ]
    before, node[key] = node[key], chance.choice(wrong)
    if node[key] == before:
        node[key] = "other"
    manifest |= top


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _odd_size(manifest: dict, chance: Chance) -> None:
    manifest["files"]["state.safetensors"]["size"] = chance.choice([0, 1, 2**47, 2**63, -5, 10**4000, 3.5])
    if chance.random() < 0.5:  # and let the arrays agree
        name = chance.choice(list(manifest["arrays"]))
        manifest["arrays"][name][1] = [2**45]


def _odd_record(manifest: dict, chance: Chance) -> None:
    record = manifest["record"]
    name = chance.choice(list(record))
    choices = [
        None,
        "x",
        [],
        {},
        -1,
        2**70,
        [["xla_dump_to", "/tmp/ludus-fuzz"]],
        {"a": "b"},
        [[1]],
        float("nan"),
        True,
    ]
    record[name] = chance.choice([value for value in choices if not _is_like(value, record[name])])
    if chance.random() < 0.2 and name in RECORD:  # earlier checkpoints do not hold the others
        del record[name]


def _is_like(value: Any, other: Any) -> bool:
    """Whether a value could stand where the other does."""
    return type(value) is type(other) or ((value is None or type(value) is int) and type(other) in (float, type(None)))


def odd_state(run: Path, chance: Chance) -> None:
    """Write arrays that are not those of the run, with hashes that are right."""
    folder = run / "checkpoints"
    path = folder / (folder / "latest").read_text().strip()
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest.pop("sha256")
    arrays = load((path / "state.safetensors").read_bytes())
    name = chance.choice([n for n in arrays if n.startswith("learner/") and arrays[n].dtype.kind == "f"])
    array = np.array(arrays[name])
    kind = chance.choice(["nan", "inf", "shape", "dtype", "missing", "extra", "header"])
    if kind in ("nan", "inf"):
        array.reshape(-1)[chance.randrange(array.size)] = float(kind)
        arrays[name] = array
    elif kind == "shape":
        arrays[name] = np.concatenate([array.reshape(-1), array.reshape(-1)])
        manifest["arrays"][name][1] = list(arrays[name].shape)
    elif kind == "dtype":
        arrays[name] = array.astype(np.float64)
        manifest["arrays"][name][0] = "float64"
    elif kind == "missing":
        del arrays[name]
        if chance.random() < 0.5:
            del manifest["arrays"][name]
    else:
        arrays["learner/more"] = array
        if chance.random() < 0.5:
            manifest["arrays"]["learner/more"] = ["float32", list(array.shape)]
    data = save(arrays)
    if kind == "header":
        data = struct.pack("<Q", chance.choice([2**63, 2**40, 10, 0])) + data[8:]
    (path / "state.safetensors").write_bytes(data)
    manifest["files"]["state.safetensors"] = {"size": len(data), "sha256": sha256(data)}
    (path / "manifest.json").write_bytes(signed(manifest))


def odd_block(run: Path, chance: Chance) -> None:
    """Put a NaN into a piece of a long array, with hashes that are right."""
    folder = run / "checkpoints"
    path = folder / (folder / "latest").read_text().strip() / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest.pop("sha256")
    floats = [name for name, entry in manifest["blocks"].items() if entry["dtype"] == "float32"]
    if not floats:
        return odd_state(run, chance)
    entry = manifest["blocks"][chance.choice(floats)]
    index = chance.randrange(len(entry["sha256"]))
    piece = np.frombuffer((folder / "blocks" / entry["sha256"][index]).read_bytes(), np.float32).copy()
    piece[chance.randrange(len(piece))] = np.nan
    entry["sha256"][index] = sha256(piece.tobytes())
    (folder / "blocks" / entry["sha256"][index]).write_bytes(piece.tobytes())
    path.write_bytes(signed(manifest))
    return None


def odd_text(run: Path, chance: Chance) -> None:
    """Put text in place of the manifest that a reader could choke on."""
    folder = run / "checkpoints"
    path = folder / (folder / "latest").read_text().strip() / "manifest.json"
    texts = [
        b"[" * 100_000, b'{"a":' * 100_000, b"null", b"[]", b"{}", b'"', b"\xff\xfe", b'{"sha256": NaN}', b"1" * 10_000,
        b'{"format": "ludus-checkpoint-1", "sha256": ""}', b'{"format": ["ludus-checkpoint-1"], "sha256": 1}',
        b'{"format": "ludus-checkpoint-9", "sha256": ""}', json.dumps({"sha256": "", "format": deep(400)}).encode(),
    ]  # fmt: skip
    path.write_bytes(chance.choice(texts))


def odd_latest(run: Path, chance: Chance) -> None:
    """Let `latest` say something strange; the last checkpoint is then taken."""
    texts = [b"", b"abc", b"-1", b"999999", b"\xff", b"1" * 100_000, b"../5", "²".encode(), b" 12 34"]
    (run / "checkpoints" / "latest").write_bytes(chance.choice(texts))


def odd_journal(run: Path, chance: Chance) -> None:
    """Take rows out of the journal, or put something else there."""
    path = run / "metrics.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    place = chance.randrange(len(rows))
    texts = [b"", b"{}\n", b"[1]\n", b'{"seq": 10000000000000000000000}\n', b'{"seq": -1}\n', b"\0" * 5000, rows[0]]
    rows[place : place + chance.randrange(3)] = [chance.choice(texts)] * chance.randrange(3)
    path.write_bytes(b"".join(rows)[: chance.choice([None, -1, chance.randrange(1, 2000)])])
    if chance.random() < 0.1:
        path.unlink()


DAMAGES: tuple[Callable[[Path, Chance], None], ...] = (
    flip, flip, truncate, extend, swap, remove, rename, link, odd_file, huge_file, odd_manifest, odd_manifest,
    odd_state, odd_block, odd_text, odd_latest, odd_journal,
)  # fmt: skip


class Hostile:
    """Executes something when a pickle of it is loaded."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {FLAG}",)


def peak_bytes() -> int:
    """Return the most memory that this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(number: int, victim: Victim, scratch: Path) -> dict[str, Any]:
    """Damage a copy of a run and read it."""
    chance = random.Random(number)
    damage = DAMAGES[number % len(DAMAGES)]
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(victim.run, copy)
    row: dict[str, Any] = {"number": number, "kind": damage.__name__, "failure": None}
    try:
        damage(copy, chance)
        row["outcome"] = victim.read(copy, fallback=number % 3 == 0)
    except Exception as error:
        row["failure"] = f"{type(error).__name__}: {error}"[:300]
    if Path(FLAG).exists():
        row["failure"] = "something was executed"
    return row


# ---- policies and critics: one safetensors file each


def _split(data: bytes) -> tuple[dict, bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _joined(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def hostile_file(data: bytes, chance: Chance) -> bytes:
    """Return a policy or critic file that nobody should trust."""
    kind = chance.randrange(10)
    changed = bytearray(data)
    if kind == 0:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind == 1:
        return data[: chance.randrange(len(data))]
    if kind == 2:
        return data + chance.randbytes(chance.choice([1, 64]))
    if kind == 3:
        return pickle.dumps(Hostile())
    if kind == 4:
        return struct.pack("<Q", chance.choice([2**63, 2**40, 2**26, 0])) + data[8:]
    header, body = _split(data)
    meta = header["__metadata__"]
    del meta["sha256"]
    name = chance.choice([n for n in header if n != "__metadata__"])
    if kind == 5:
        header[name]["shape"] = chance.choice([[2**63], [2**31, 2**31], [-1], [0], [], [1] * 70])
    elif kind == 6:
        header[name]["dtype"] = chance.choice(["F64", "BF16", "U8", "O", "F8_E4M3", 5])
    elif kind == 7:
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = chance.choice([[begin, end + 4], [0, 2**62], [end, begin], [begin, begin]])
    elif kind == 8:
        key = chance.choice(list(meta))
        meta[key] = chance.choice(["", "null", "[]", "{}", "[" * 5000, "x" * 9999, "1e999", '{"kind": "Box"}', "-1"])
    else:
        meta[chance.choice(list(meta))] = _altered(meta, chance)
    return _forged(header, body, chance)


def _forged(header: dict[str, Any], body: bytes, chance: Chance) -> bytes:
    """Return a file with the checksum that it should have, or without one, as if it had never had any."""
    meta, data = header["__metadata__"], _joined(header, body)
    if chance.random() < 0.2:
        meta.pop("scaling", None)
    else:
        with contextlib.suppress(Exception):  # what is no safetensors file has no checksum either
            meta["sha256"] = checksum(dict(meta), load(data))
    return _joined(header, body)


def _altered(meta: dict[str, str], chance: Chance) -> str:
    """Take a part of the header's description and replace one thing in it."""
    value = json.loads(meta[chance.choice(["algorithm", "observation_space", "action_space"])])
    node: Any = value
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = chance.choice(list(keys))
        if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.6:
            node = node[key]
            continue
        break
    node[key] = chance.choice([None, -1, 2**40, "os.system", [], {}, "x", 1e400, [2**40], [[2**31]]])
    return json.dumps(value)


def hostile(number: int, file: Path, scratch: Path) -> dict[str, Any]:
    """Make a hostile file of a policy or critic and load it."""
    chance = random.Random(number)
    load_it = load_critic if "critic" in file.name else load_policy
    data = hostile_file(file.read_bytes(), chance)
    path = scratch / file.name
    path.write_bytes(data)
    row: dict[str, Any] = {"number": number, "kind": file.stem, "failure": None}
    try:
        load_it(path)
        row["outcome"] = "identical" if data == file.read_bytes() else "loaded"
    except LudusError as error:
        row["outcome"] = "rejected"
        if str(path) not in str(error):
            row["failure"] = f"names no file: {error}"[:300]
    except Exception as error:
        row["failure"] = f"{type(error).__name__}: {error}"[:300]
    if Path(FLAG).exists():
        row["failure"] = "something was executed"
    return row
