"""A disk that fails costs a run nothing but checkpoints that could not be written; it says so, and recovers."""

import contextlib
import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from crash_points import SCENARIOS, act, check_left, check_next, prepare
from disk_faults import ERRORS, Reference, Said, check_good, failing, fault, train
from ludus import LudusError
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runtime import files

pytestmark = pytest.mark.slow

FAULTS = 32


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference(tmp_path_factory.mktemp("reference"))


@pytest.mark.requirement("S4.16")
@pytest.mark.parametrize("scenario", SCENARIOS[1:4], ids=lambda scenario: scenario.name)
def test_whichever_operation_of_saving_fails_a_whole_checkpoint_stays_and_the_next_save_works(
    scenario, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power is cut here
    prepare(tmp_path / "prepared", scenario)
    with failing(errno.EIO, 0, 0) as events:
        shutil.copytree(tmp_path / "prepared", tmp_path / "trial")
        act(tmp_path / "trial", scenario)
    left = Counter()
    for point in range(len(events)):
        shutil.rmtree(tmp_path / "trial")
        shutil.copytree(tmp_path / "prepared", tmp_path / "trial")
        number = ERRORS[point % len(ERRORS)]
        with failing(number, point, 1), pytest.raises(OSError, match=os.strerror(number)):
            act(tmp_path / "trial", scenario)
        left[check_left(tmp_path / "trial", scenario)] += 1
        check_next(tmp_path / "trial", scenario)
    assert left["old"] and left["new"]


def test_a_run_whose_disk_fails_for_a_while_ends_as_the_one_whose_disk_did_not(reference, tmp_path):
    rows = [fault(seed, reference, tmp_path) for seed in range(FAULTS)]
    assert [row for row in rows if row["failure"]] == []
    assert {row["ended"] for row in rows} == {"finished", "one line"}


def test_rows_that_cannot_be_written_are_kept_in_memory_and_written_when_that_is_possible_again(reference, tmp_path):
    said = Said()
    with failing(errno.ENOSPC, 1, 3, only="before append"):
        train(tmp_path / "run", "continue", said)
    reference.compare(tmp_path / "run")
    journal = [line for line in said.lines if "kept in memory" in line or "the journal" in line]
    assert [line.partition(": ")[2] for line in journal] == [
        "cannot be written (No space left on device); its rows are kept in memory, training goes on",
        "the journal is written again",
    ]


def test_a_run_that_shall_stop_stops_and_leaves_its_last_good_checkpoint(reference, tmp_path):
    with failing(errno.EDQUOT, 0, 10**6, only="checkpoints/.partial-256"), pytest.raises(LudusError) as caught:
        train(tmp_path / "run", "stop", Said())
    assert "cannot be saved (Disk quota exceeded); checkpoint.on_error=stop" in str(caught.value)
    assert max(Checkpoints(tmp_path / "run").steps()) in (128, 192)
    check_good(tmp_path / "run")


LIMITED = """
import resource, sys
from ludus.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


def test_a_file_that_may_not_grow_is_said_in_one_line_and_the_journal_stays_whole(tmp_path):
    words = [
        "env=jax:CartPole-v1", "num_envs=4", "total_steps=640", "algorithm.batch_size=64", "preset=null",
        "algorithm.minibatch_size=32", "checkpoint.every_iterations=2", "num_checkpoints=0", "eval_frequency=0",
        "health_frequency=0",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "train", *words, f"run_dir={tmp_path / 'run'}"],
        # No compiled modules: Python would keep one that was cut at the limit, and every later import would fail.
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("checkpoint cannot be saved (File too large)") >= 1
    assert not Checkpoints(tmp_path / "run").steps()
    journal = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert journal.endswith(b"\n") and len(journal) <= 6000


@contextlib.contextmanager
def small_disk(folder: Path, size: int):
    """Mount a small disk, if we may; otherwise let every write fail that would make the folder larger."""
    folder.mkdir()
    system = ctypes.CDLL(None, use_errno=True)
    if system.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()) == 0:
        try:
            yield folder
        finally:
            system.umount2(os.fsencode(folder), 2)  # MNT_DETACH
        return

    def watch(what: str, path: Path) -> None:
        if what.startswith("before write") and sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files.observe, before = watch, files.observe
    try:
        yield folder
    finally:
        files.observe = before


def test_a_full_disk_keeps_the_last_good_checkpoint_and_is_recovered_from_when_space_returns(reference, tmp_path):
    with small_disk(tmp_path / "disk", 400_000) as disk:
        filler, said, was_full = disk / "filler", Said(), []

        def fill() -> None:
            is_real = os.path.ismount(disk)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096 if is_real else 500_000)) and is_real:
                    pass

        def fill_then_free(what: str, path: Path) -> None:
            if what == "after fsync" and path.name == "checkpoints" and not was_full:
                was_full.append(path)
                fill()
            outer(what, path)

        def heard(text: str) -> None:
            said(text)
            if "cannot be" in text:
                filler.unlink(missing_ok=True)

        outer, files.observe = files.observe, fill_then_free
        try:
            train(disk / "run", "continue", heard)
        finally:
            files.observe = outer
        assert any("cannot be saved (No space left on device)" in line for line in said.lines), said.lines
        assert any("checkpoint is saved again" in line for line in said.lines), said.lines
        check_good(disk / "run")
        reference.compare(disk / "run")
