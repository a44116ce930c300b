"""Which checkpoints are kept: all while they are small, then sparser ones the older they are."""

import numpy as np
import pytest
from resume_runs import iterations, run

import ludus
from ludus.runs.checkpoint.format import BLOCKS, MANIFEST, Blocks, Checkpoint
from ludus.runs.checkpoint.retention import Retention, Saved, Shelf
from ludus.runs.checkpoint.store import Checkpoints, Snapshot
from ludus.runtime import files
from ludus.training.checkpoint_writer import CheckpointOptions


def thinned(retention, steps, size=10, shelf=None):
    """Save checkpoints one after the other, as a run does; return what is on the shelf then."""
    shelf = shelf or Shelf()
    for step in steps:
        shelf.add(Saved(step, size))
        while (gone := retention.next_to_go(shelf)) is not None:
            shelf.drop(gone)
    return shelf


@pytest.mark.slow
@pytest.mark.requirement("S4.13")
def test_a_run_of_small_checkpoints_keeps_them_all_and_goes_on_from_any(tmp_path):
    options = CheckpointOptions(every_iterations=1, every_minutes=0)
    run("ppo jax", tmp_path / "run", 9, checkpoint=options, eval_frequency=0)
    assert Checkpoints(tmp_path / "run").steps() == [64 * i for i in range(1, 10)]
    resumed = ludus.Trainer.resume(tmp_path / "run", 2 * 64, verbose=False)
    resumed.train(total_steps=iterations("ppo jax", 4))
    assert Checkpoints(tmp_path / "run").steps() == [64 * i for i in range(1, 5)]


@pytest.mark.requirement("S4.13")
def test_beyond_the_budget_old_checkpoints_get_sparser():
    shelf = thinned(Retention(3, 0, 0, 200), range(1, 1001))
    steps = sorted(shelf.saved)
    assert len(steps) == 20 and shelf.size == 200
    assert steps[-3:] == [998, 999, 1000]
    holes = np.diff(steps)
    assert holes[0] > 10 * holes[-1]
    recent, old = 1000 - np.array(steps[:-3]), holes[:-2]
    assert (old <= 1.5 * recent).all()  # no hole is larger than what came after it, give or take
    assert steps[0] <= 500


def test_the_latest_the_best_and_every_nth_stay_whatever_they_take():
    shelf = Shelf()
    retention = Retention(2, 1, 5, 1)
    for step in range(1, 14):
        shelf.add(Saved(step, 10, score=-abs(step - 3), ordinal=step))
        while (gone := retention.next_to_go(shelf)) is not None:
            shelf.drop(gone)
    assert sorted(shelf.saved) == [3, 5, 10, 12, 13]


def test_a_break_in_between_changes_nothing():
    retention = Retention(3, 0, 0, 120)
    whole = thinned(retention, range(1, 301))
    part = thinned(retention, range(1, 200))
    again = Shelf()  # another process reads what is there
    for saved in part.saved.values():
        again.add(saved)
    assert thinned(retention, range(200, 301), shelf=again).saved == whole.saved


def test_what_checkpoints_share_counts_once_and_goes_with_the_last_that_names_it():
    shelf = Shelf()
    shelf.add(Saved(1, 10, (("a", 100), ("b", 100))))
    shelf.add(Saved(2, 10, (("b", 100), ("c", 100))))
    assert shelf.size == 320
    shelf.drop(1)
    assert shelf.size == 210 and "a" not in shelf.uses and shelf.uses["b"] == 1


def test_a_save_reads_its_own_manifest_and_no_other(tmp_path, monkeypatch):
    opened = []
    known = Checkpoint.__init__
    monkeypatch.setattr(Checkpoint, "__init__", lambda self, *given: (opened.append(given[1]), known(self, *given))[0])
    checkpoints = Checkpoints(tmp_path, Retention(1, 0, 0, 10_000))
    for step in range(1, 30):
        rows = np.full((4, 8), step, np.float32)
        blocks = {"replay": Blocks((8, 8), "float32", 4, {step % 2: rows})}
        opened.clear()
        checkpoints.save(Snapshot(step, {"x": np.full(64, step, np.float32)}, blocks, {"ordinal": step}))
        assert set(opened) == {step}
    assert 2 < len(checkpoints.steps()) < 29
    named = {name for step in checkpoints.steps() for name, _ in checkpoints.open(step).saved.blocks}
    assert {path.name for path in (tmp_path / "checkpoints" / BLOCKS).iterdir()} == named
    assert sum(p.stat().st_size for p in (tmp_path / "checkpoints").rglob("*") if p.is_file()) <= 10_000


@pytest.mark.slow
def test_with_500_kept_a_save_reads_what_it_reads_with_five(tmp_path, monkeypatch):
    reads, known = [], files.read
    monkeypatch.setattr(files, "read", lambda path, most: (reads.append(path), known(path, most))[1])
    monkeypatch.setattr("os.fsync", lambda file: None)  # a thousand of them would take minutes on some disks

    def read_by(checkpoints, step):
        blocks = {"replay": Blocks((8, 8), "float32", 4, {step % 2: np.full((4, 8), step, np.float32)})}
        reads.clear()
        checkpoints.save(Snapshot(step, {"x": np.full(4, step, np.float32)}, blocks, {"ordinal": step, "score": 0.5}))
        manifests = [path.parent.name for path in reads if path.name == MANIFEST]
        return manifests, len(reads) - len(manifests)

    checkpoints = Checkpoints(tmp_path, Retention(1, 1, 0, 1 << 30))
    counts = {step: read_by(checkpoints, step) for step in range(1, 502)}
    assert len(checkpoints.steps()) == 501
    assert len(counts[5][0]) == len(counts[500][0]) and set(counts[500][0]) == {"500"}
    assert counts[5][1] == counts[500][1]
    resumed = Checkpoints(tmp_path, Retention(1, 1, 0, 1 << 30))  # another process looks at each once, and not again
    assert sorted(set(read_by(resumed, 502)[0]), key=int) == [str(step) for step in range(1, 503)]
    assert set(read_by(resumed, 503)[0]) == {"503"}
