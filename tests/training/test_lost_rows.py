"""A journal that is lost or cut: one line says which rows; with --fallback the run goes on with those that are left."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from damaged_runs import note, refused, resumed
from resume_runs import iterations, run

import ludus
from ludus.cli.main import main
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.journal import read_journal
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S4.16")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run with seven rows and checkpoints at 128, 192, 256 and 384 steps."""
    folder = tmp_path_factory.mktemp("runs") / "ppo"
    run("ppo jax", folder, 6)
    return folder


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def lines(folder: Path) -> list[bytes]:
    return (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def cut_lines(keep) -> None:
    """Return a damage that leaves other lines."""
    return lambda folder: (folder / "metrics.jsonl").write_bytes(b"".join(keep(lines(folder))))


JOURNALS = {
    # name: (damage, numbers of the rows that are left, what is said)
    "is missing": (lambda folder: (folder / "metrics.jsonl").unlink(), [], r"7 of 7 rows are lost \(0 to 6\)"),
    "is empty": (cut_lines(lambda rows: []), [], r"7 of 7 rows are lost \(0 to 6\)"),
    "is cut after a row": (cut_lines(lambda rows: rows[:3]), [0, 1, 2], r"4 of 7 rows are lost \(3 to 6\)"),
    "is cut in a row": (
        cut_lines(lambda rows: [*rows[:3], rows[3][:40]]), [0, 1, 2], r"4 of 7 rows are lost \(3 to 6\)",
    ),
    "ends with half a row": (
        cut_lines(lambda rows: [*rows[:6], rows[6][:-1]]), [0, 1, 2, 3, 4, 5], r"1 of 7 rows is lost \(6\)",
    ),
    "ends with a damaged row": (
        cut_lines(lambda rows: [*rows[:6], rows[6][:30] + b"\0" * 9 + b"\n"]), [0, 1, 2, 3, 4, 5],
        r"1 of 7 rows is lost \(6\)",
    ),
    "has lost a row in its midst": (
        cut_lines(lambda rows: rows[:2] + rows[3:]), [0, 1, 3, 4, 5, 6], r"1 of 7 rows is lost \(2\)",
    ),
    "has lost its beginning": (cut_lines(lambda rows: rows[4:]), [4, 5, 6], r"4 of 7 rows are lost \(0 to 3\)"),
    "has two rows in one line": (
        cut_lines(lambda rows: [rows[0], rows[1][:-1], b"  ", *rows[2:]]), [0, 3, 4, 5, 6],
        r"2 of 7 rows are lost \(1 to 2\)",
    ),
    "has a row that was never there": (
        cut_lines(lambda rows: [rows[0], b"{}\n", *rows[1:]]), [0, 1, 2, 3, 4, 5, 6],
        "no row is lost, but there are others among them",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_that_has_lost_rows_is_said_and_with_fallback_the_run_goes_on(finished, folder, name, capsys):
    damage, left, told = JOURNALS[name]
    damage(folder)
    damaged = (folder / "metrics.jsonl").read_bytes() if (folder / "metrics.jsonl").exists() else b""
    said = refused(folder, capsys, "total_steps=512")
    assert f"{folder}/metrics.jsonl: is " in said and "ludus resume --fallback goes on with" in said
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ludus.training.trainer.Trainer.evaluate", None)
        assert main(["resume", str(folder), "--fallback", "total_steps=512"]) == 0
    identity = read_identity(folder)
    (entry,) = identity["resumed"]
    assert (entry["steps"], entry["level"], len(entry["lost"])) == (384, "exact", 1)
    assert re.fullmatch(f"journal: {told}", entry["lost"][0]), entry
    assert entry["lost"][0].removeprefix("journal: ") in capsys.readouterr().err
    kept = folder / "before-1" / "metrics.jsonl"
    assert (kept.read_bytes() if kept.exists() else b"") == damaged
    whole, rows = read_journal(finished), read_journal(folder)
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    before = [{**whole[number], "seq": place} for place, number in enumerate(left)]
    assert rows[: len(left)] == before
    assert [(row["steps"], row["kind"]) for row in rows[len(left) :]] == [
        (384, "evaluation"), (448, "train"), (512, "train"), (512, "evaluation"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def longer(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "longer"
    run("ppo jax", folder, 12)
    return folder


def test_after_that_every_checkpoint_knows_how_many_rows_were_before_it(longer, folder):
    JOURNALS["has lost a row in its midst"][0](folder)
    resumed(folder, 8, fallback=True)
    for start in ("latest", 384, 256, 128):  # each takes back what came after it, and needs no fallback
        copy = shutil.copytree(folder, folder.parent / f"from {start}")
        resumed(copy, 12, start)
        assert differences(state_of(copy), state_of(longer)) == []
        is_lost = start != 128  # from there it is made again
        expected = [row for row in journal_of(longer) if not is_lost or row["seq"] != 2]
        assert journal_of(copy) == [{**row, "seq": place} for place, row in enumerate(expected)]


def test_it_may_be_killed_before_its_next_checkpoint_and_doubles_no_row(longer, folder):
    """The rows that it makes after the damage have the numbers that those had which were lost."""
    JOURNALS["is cut after a row"][0](folder)
    made = ludus.Trainer.resume(folder, fallback=True, total_steps=iterations("ppo jax", 8), verbose=False)
    made.final_episodes = 0
    made.judge.saw = lambda rows: 1 / 0
    with pytest.raises(ZeroDivisionError):  # as a kill would, this leaves rows for which there is no checkpoint
        made.train()
    assert len(read_journal(folder)) == 5 and Checkpoints(folder).steps()[-1] == 384
    resumed(folder, 12)
    assert differences(state_of(folder), state_of(longer)) == []
    expected = [row for row in journal_of(longer) if row["seq"] < 3 or row["seq"] > 6]
    assert journal_of(folder) == [{**row, "seq": place} for place, row in enumerate(expected)]


def test_a_missing_journal_does_not_keep_a_run_without_a_checkpoint_from_beginning_again(finished, folder):
    shutil.rmtree(folder / "checkpoints")
    (folder / "metrics.jsonl").unlink()
    note(folder, status="running", first_checkpoint=None)
    resumed(folder)
    assert journal_of(folder) == journal_of(finished)


def test_tensorboard_shows_the_rows_that_are_left_once(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    JOURNALS["has lost a row in its midst"][0](folder)
    resumed(folder, 8, fallback=True)
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    shown = [(point.step, point.value) for point in found.Scalars("train/policy_loss")]
    rows = [row for row in read_journal(folder) if row["kind"] == "train"]
    assert shown == [(row["steps"], np.float32(row["policy_loss"])) for row in rows] and len(rows) == 7


def test_several_damages_at_once_are_mended_by_one_fallback(finished, folder, capsys):
    (folder / "checkpoints" / "384" / "manifest.json").unlink()
    JOURNALS["is cut after a row"][0](folder)
    assert "takes the one before, of 256 steps" in refused(folder, capsys)
    resumed(folder, fallback=True)
    (entry,) = read_identity(folder)["resumed"]
    assert entry == {"steps": 256, "level": "exact", "lost": ["journal: 2 of 5 rows are lost (3 to 4)"]}
    assert differences(state_of(folder), state_of(finished)) == []
