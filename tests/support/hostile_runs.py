"""Run folders as a stranger, or a failing disk, may leave them; and every verb that reads them, within limits."""

import contextlib
import importlib
import io
import json
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from run_folders import learning_rows, make_run

from ludus.runs.journal import line_of

JOURNAL, CONFIG, IDENTITY = "metrics.jsonl", "config.yaml", "run.json"
SECONDS, BYTES = 5.0, 1 << 30
"""What a verb may take of processor time and memory."""
Make = Callable[[Path, random.Random], Any]


class Kind(NamedTuple):
    """A way in which a run folder is bad."""

    make: Make
    is_lost: bool = True
    """Whether nothing can be shown of it; else it is shown without what is damaged."""


def _rows(run: Path, *lines: bytes) -> None:
    with (run / JOURNAL).open("ab") as journal:
        journal.writelines(line + b"\n" for line in lines)


def _only(run: Path, *lines: bytes) -> None:
    (run / JOURNAL).write_bytes(b"".join(line + b"\n" for line in lines))


def _instead(name: str, make: Callable[[Path], Any]) -> Make:
    def place(run: Path, chance: random.Random) -> None:
        (run / name).unlink()
        make(run / name)

    return place


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 42)


def _renamed(run: Path, chance: random.Random) -> None:
    os.rename(run, os.path.join(os.fsencode(run.parent), b"bad-\xff\xfe" + bytes([chance.randint(0x80, 0xFF)])))


def _columns(run: Path, chance: random.Random) -> None:
    count = chance.choice([10**4, 10**5, 10**6])
    _only(run, b'{"kind": "train", ' + b", ".join(b'"c%d": 1' % i for i in range(count)) + b"}")


def _many_names(run: Path, chance: random.Random) -> None:
    lines = (
        b'{"kind": "train", "steps": 1, %s}' % b", ".join(b'"n%d": 1' % (50 * i + j) for j in range(50))
        for i in range(4000)
    )
    _rows(run, *lines)


def _few_names_many_rows(run: Path, chance: random.Random) -> None:
    _rows(run, b'{"kind": "train", %s}' % b", ".join(b'"n%d": 1' % j for j in range(1500)))
    _rows(run, *[b'{"kind":"train"}'] * 200_000)


def _flipped(run: Path, chance: random.Random) -> None:
    data = bytearray((run / JOURNAL).read_bytes())
    for _ in range(200):
        data[chance.randrange(len(data))] = chance.randrange(256)
    (run / JOURNAL).write_bytes(bytes(data))


def _other_digits(run: Path, chance: random.Random) -> None:
    """Change digits alone, in rows that have checksums: every line stays a row of numbers."""
    rows = [json.loads(line) for line in (run / JOURNAL).read_bytes().splitlines()]
    data = bytearray(b"".join(line_of(row.pop("seq"), row) for row in rows))
    digits = [i for i, byte in enumerate(data) if byte in b"0123456789"]
    for i in chance.sample(digits, 20):
        data[i] = chance.choice(sorted({*b"123456789"} - {data[i]}))
    (run / JOURNAL).write_bytes(bytes(data))


def _odd(chance: random.Random) -> bytes:
    names = ("steps", "entropy", "histogram/action")
    figures = ", ".join(f'"{name}": {chance.choice(ODD)}' for name in names)
    return f'{{"kind": "train", {figures}}}'.encode()


def _nested(chance: random.Random, levels: tuple[int, ...]) -> bytes:
    count = chance.choice(levels)
    return b'{"id": "x", "kind": "train", "a": ' + b"[" * count + b"]" * count + b"}"


def _digits(chance: random.Random) -> bytes:
    return b'{"id": "x", "kind": "train", "steps": %s}' % (b"9" * chance.choice([400, 5000, 10**6]))


def _add(*make: Callable[[random.Random], bytes]) -> Kind:
    """Return the kind whose journal has these rows besides."""
    return Kind(lambda run, chance: _rows(run, *(row(chance) for row in make)), is_lost=False)


def _text(name: str, make: Callable[[random.Random], str | bytes], *, is_lost: bool = True) -> Kind:
    """Return the kind that has this in a file, and nothing else."""

    def write(run: Path, chance: random.Random) -> None:
        made = make(chance)
        (run / name).write_bytes(made if isinstance(made, bytes) else made.encode())

    return Kind(write, is_lost)


NESTS = ("[", "{a: ", "- ", "? ", "[\n", "[ #]\n", "[&a ")
ODD = ('"\\ud800"', '"\\udfff\\ud800"', "NaN", "-Infinity", "1e999", "null", '"x"', "[[1]]", '{"low": "a"}', "true")
ODD_NAMES = ("", "../../x", "NaN", "</script>", "a" * 5000, "\x1b[2J", "\0", "eval_", "info/")
ODD_SETTINGS = (
    "env: [1, {a: 2}]\nseed: .nan\nalgorithm: 3\ntracking: x\n.nan: 1\n? null\n: 2\n2001-01-01: !!binary aGVs\n"
)
ODD_IDENTITY = {"status": ["x"], "devices": {}, "versions": 3, "started": "then", "best": [1], "resumed": [1, {}]}
FILES = (CONFIG, IDENTITY, JOURNAL)
PLACES: dict[str, Make] = {
    f"{what} {name}": make
    for name in FILES
    for what, make in {
        "FIFO as": _instead(name, os.mkfifo),
        "socket as": _instead(name, _socket),
        "folder as": _instead(name, Path.mkdir),
        "link as": _instead(name, lambda path: path.symlink_to("/dev/zero")),
        "no": _instead(name, lambda path: None),
        "endless": lambda run, chance, name=name: _sparse(run / name),
    }.items()
}
KINDS: dict[str, Kind] = {
    **{name: Kind(make) for name, make in PLACES.items()},
    **{
        f"garbage in {name}": _text(name, lambda chance: chance.randbytes(chance.randint(1, 1 << 16))) for name in FILES
    },
    **{f"forbidden {name}": Kind(lambda run, _, name=name: (run / name).chmod(0), is_lost=False) for name in FILES},
    "name that is not UTF-8": Kind(_renamed, is_lost=False),
    "nested YAML": _text(CONFIG, lambda chance: chance.choice(NESTS) * chance.randint(1000, 200_000)),
    "aliases in YAML": _text(CONFIG, lambda chance: "a: &a [1]\nb: [*a, *a]\n"),
    "wide YAML": _text(CONFIG, lambda chance: "[" + "[]," * 300_000 + "]"),
    "digits in YAML": _text(
        CONFIG, lambda chance: f"seed: {chance.choice(['', '0x', '-'])}{'1' * chance.randint(4000, 900_000)}\n"
    ),
    "base sixty in YAML": _text(CONFIG, lambda chance: f"seed: {'1:' * chance.randint(1000, 400_000)}1\n"),
    "tag in YAML": _text(CONFIG, lambda chance: "env: !!python/object/apply:os.system ['touch hacked']\n"),
    "surrogate in YAML": _text(CONFIG, lambda chance: 'env: "\\ud800"\n'),
    "odd settings": _text(CONFIG, lambda chance: ODD_SETTINGS, is_lost=False),
    "long settings": _text(CONFIG, lambda chance: f"env: {'x' * 900_000}\n", is_lost=False),
    "nested JSON": _text(IDENTITY, lambda chance: _nested(chance, (100, 900, 500_000))),
    "digits in JSON": _text(IDENTITY, _digits),
    "surrogate in JSON": _text(IDENTITY, lambda chance: '{"id": "\\ud800", "status": "finished"}'),
    "odd identity": _text(IDENTITY, lambda chance: json.dumps({"id": "x", **ODD_IDENTITY}), is_lost=False),
    "row of many columns": Kind(_columns),
    "nothing but digits": _text(JOURNAL, lambda chance: _digits(chance) + b"\n", is_lost=False),
    "many names": Kind(_many_names, is_lost=False),
    "rows that make many cells": Kind(_few_names_many_rows, is_lost=False),
    "flipped bytes": Kind(_flipped, is_lost=False),
    "other digits": Kind(_other_digits, is_lost=False),
    "digits in the journal": _add(_digits),
    "nested row": _add(lambda chance: _nested(chance, (100, 100_000))),
    "surrogates in the journal": _add(*[lambda chance: b'{"kind": "train", "steps": 40000, "\\ud800_loss": 1.0}'] * 40),
    "odd values": _add(*[_odd] * 50),
    "odd names": _add(lambda chance: json.dumps({"kind": "train", **dict.fromkeys(ODD_NAMES, 1.5)}).encode()),
    "rows that are none": _add(*[lambda chance: chance.choice((b"", b"[]", b"7", b"{", b'"x"', b"\xff\0"))] * 20),
    "line without end": _add(lambda chance: b"x" * (9 << 20)),
}


class Told(NamedTuple):
    """What a verb came to."""

    code: int | None
    """None if it was killed: it hung, or took more memory than there may be."""
    out: str
    err: str
    seconds: float
    """Of processor time."""
    bytes: int
    """The most memory that its process held."""


def make_shelf(folder: Path, name: str, seed: int) -> tuple[list[Path], Path]:
    """Make two healthy runs and a bad one beside them; return them."""
    healthy = [make_run(folder / f"healthy-{i}", learning_rows(30, seed=i), seed=i) for i in (1, 2)]
    bad = make_run(folder / "bad", learning_rows(30), seed=3)
    KINDS[name].make(bad, random.Random(seed))
    return healthy, next(path for path in folder.iterdir() if path.name.startswith("bad"))


def verb(*words: str | Path) -> tuple[int, str, str]:
    """Run a verb here; without MLflow, which takes longer to begin than all of this."""
    from ludus.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([os.fspath(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def watch(folder: Path) -> tuple[int, str, str]:
    """Do what the live page does: the list of runs, and then each of them."""
    from ludus.report.live.run_index import RunIndex
    from ludus.report.live.run_view import RunView
    from ludus.report.live.stream import PageUpdates

    index = RunIndex(folder)
    for _ in range(2):  # the second look reads the journals
        index._refreshed = min(index._refreshed, 0.0)
        index.refresh()
    pages = {}
    PageUpdates(index, None).next_update().decode()
    for run in index.runs.values():
        view = RunView(run)
        view.refresh(False)
        PageUpdates(index, view).next_update().decode()
        told = [view.head["problem"], *view.head.get("notes", [])]
        pages[run.name] = {**run.row, "told": [text for text in told if text], "panels": len(view.panels)}
    return 0, json.dumps(pages), ""


def limited(work: Callable[[], tuple[int, str, str]], patience: int = 90) -> Told:
    """Do it in a child of this process, which may take so long and four times the memory it should."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_AS, (4 * BYTES, 4 * BYTES))
            signal.alarm(patience)
            before = time.process_time()
            try:
                told = work()
            except BaseException:
                told = 1, "", traceback.format_exc()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps([*told, time.process_time() - before]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    used = os.wait4(pid, 0)[2]
    if not answer:
        return Told(None, "", "", used.ru_utime + used.ru_stime, used.ru_maxrss << 10)
    code, out, err, seconds = json.loads(answer)
    return Told(code, out, err, seconds, used.ru_maxrss << 10)


def trial(name: str, seed: int, margin: float = 1.0) -> dict[str, Any]:
    """Show a bad run to every verb; return how that went, with its `failure` or None."""
    with tempfile.TemporaryDirectory() as folder:
        shelf = Path(folder) / "runs"
        healthy, bad = make_shelf(shelf, name, seed)
        page = Path(folder) / "several.html"
        verbs: dict[str, tuple[Callable[[], tuple[int, str, str]], Callable[[Told], bool]]] = {
            "runs": (lambda: verb("runs", shelf), lambda told: _is_listed(told, KINDS[name])),
            "runs --json": (lambda: verb("runs", shelf, "--json"), lambda told: len(json.loads(told.out)) == 3),
            "compare": (lambda: verb("compare", *healthy, bad), lambda told: _is_whole(told, KINDS[name], told.out)),
            "report": (lambda: verb("report", bad, "--no-images"), _is_refused_or_done),
            "report of several": (
                lambda: verb("report", *healthy, bad, "--output", page, "--no-images"),
                lambda told: _is_whole(told, KINDS[name], told.err + page.read_text()),
            ),
            "track": (lambda: verb("track", bad), _is_refused_or_done),
            "track of a healthy one": (lambda: verb("track", healthy[0]), lambda told: not told.code),
            "watch": (lambda: watch(shelf), lambda told: _is_watched(told, KINDS[name])),
        }
        worst = {"seconds": 0.0, "bytes": 0}
        failure = None
        for words, (work, is_right) in verbs.items():
            told = limited(work)
            worst = {"seconds": max(worst["seconds"], told.seconds), "bytes": max(worst["bytes"], told.bytes)}
            if told.code is None:
                failure = failure or f"{words}: hung, or was killed"
            elif "Traceback" in told.err or not is_right(told):
                failure = failure or f"{words}: {told.code} {told.out[-500:]} {told.err[-1500:]}"
            elif told.seconds > margin * SECONDS or told.bytes > margin * BYTES:
                failure = failure or f"{words}: {told.seconds:.1f} s, {told.bytes >> 20} MiB"
        return {"kind": name, "seed": seed, **worst, "failure": failure}


def _is_listed(told: Told, kind: Kind) -> bool:
    lines = told.out.splitlines()
    good = [line for line in lines if line.startswith("healthy-") and "finished" in line and "30,720" in line]
    bad = [line for line in lines if line.startswith("bad")]
    return not told.code and len(good) == 2 and len(bad) == 1 and ("damaged: " in bad[0] or not kind.is_lost)


def _is_whole(told: Told, kind: Kind, text: str) -> bool:
    """Tell whether the healthy runs are there, and what is wrong with the one that cannot be read."""
    named = "left out: " in text or "damaged line" in text
    return not told.code and "healthy-1" in text and "healthy-2" in text and (named or not kind.is_lost)


def _is_refused_or_done(told: Told) -> bool:
    lines = told.err.splitlines()
    return not told.code or (
        told.code == 2 and len(lines) == 1 and lines[0].startswith("ludus: ") and "bad" in lines[0]
    )


def _is_watched(told: Told, kind: Kind) -> bool:
    pages = json.loads(told.out)
    bad = [page for name, page in pages.items() if name.startswith("bad")]
    good = [page for name, page in pages.items() if name.startswith("healthy-")]
    is_named = len(bad) == 1 and bool(bad[0].get("problem") or bad[0]["told"] or not kind.is_lost)
    return is_named and len(good) == 2 and all(page["status"] == "finished" and page["panels"] for page in good)


def trials(first: int, stop: int) -> Iterator[dict[str, Any]]:
    """Yield trials of every kind in turn, each time otherwise."""
    _warm_up()
    names = list(KINDS)
    for number in range(first, stop):
        yield trial(names[number % len(names)], number)


def _warm_up() -> None:
    """Import once, for all children, what verbs need; MLflow is not there for them."""
    sys.modules["mlflow"] = None  # ty: ignore[invalid-assignment]
    for module in (
        "cli.inspect",
        "report.html.make",
        "report.tables",
        "runs.trackers.tensorboard",
        "report.live.run_view",
    ):
        importlib.import_module(f"ludus.{module}")


def main() -> None:
    """Make one trial of each kind that is named and print them; with a margin, for machines are slow."""
    _warm_up()
    for name in sys.argv[1:]:
        print(json.dumps(trial(name, 0, margin=6.0)), flush=True)


if __name__ == "__main__":
    main()
