"""Checkpoints that are gone or damaged: one line says so with the choices; with --fallback the run goes on."""

import shutil
from pathlib import Path

import pytest
from damaged_runs import content, flip, note, refused, resumed
from resume_runs import iterations, run, trainer

import ludus
from ludus.cli.main import main
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.journal import read_journal
from ludus.training.checkpoint_writer import CheckpointOptions
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


# Checkpoints that are gone


def test_run_json_says_at_which_step_the_first_checkpoint_was_written(tmp_path):
    noted = []

    def look(metrics):
        noted.append(read_identity(tmp_path / "run")["first_checkpoint"])
        made.keeper.settle()

    made = trainer("ppo jax", tmp_path / "run", eval_frequency=0, checkpoint=CheckpointOptions(3, every_minutes=0))
    made.train(total_steps=iterations("ppo jax", 8), callback=look)
    assert noted[:3] == [None] * 3 and noted[-1] == 192
    assert read_identity(tmp_path / "run")["first_checkpoint"] == 192 == Checkpoints(tmp_path / "run").steps()[0]


@pytest.mark.parametrize("how", ["deleted", "emptied", "pieces are left"])
@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "finished"])
def test_a_run_whose_checkpoints_are_gone_is_not_taken_for_a_new_one(folder, status, how, capsys):
    shutil.rmtree(folder / "checkpoints")
    if how != "deleted":
        (folder / "checkpoints").mkdir()
    if how == "pieces are left":
        (folder / "checkpoints" / "blocks").mkdir()
        (folder / "checkpoints" / "blocks" / ("0" * 64)).write_bytes(b"piece")
    note(folder, status=status)
    said = refused(folder, capsys)
    assert "has no checkpoint to go on from, but had written some: put checkpoints/ back" in said
    assert "ludus resume --fallback, which keeps its journal and policies beside" in said
    assert said.endswith("policies/ still holds best_eval_pi_ckpt, best_return_pi_ckpt, final_actor, final_critic, "
                         "pi_ckpt1, pi_ckpt2, pi_ckpt3")  # fmt: skip


def test_with_fallback_it_begins_again_and_what_there_was_is_kept(finished, folder, capsys):
    shutil.rmtree(folder / "checkpoints")
    note(folder, status="running")
    before = content(folder)
    assert main(["resume", str(folder), "--fallback"]) == 0
    said = capsys.readouterr().err
    assert (
        f"its checkpoints are gone: the run begins again at 0 steps; what there was is kept in {folder}/before-1"
        in (said)
    )
    assert said.split("what there was")[0].rsplit("\n", 1)[1] in (folder / "log.txt").read_text()
    kept = content(folder / "before-1")
    expected = {name: data for name, data in before.items() if name.startswith(("policies/", "metrics.jsonl"))}
    assert kept == expected
    assert differences(state_of(folder), state_of(finished)) == []
    rows = [row for row in journal_of(folder) if row != journal_of(folder)[-1] or row["kind"] == "train"]
    assert rows == journal_of(finished)  # but for the evaluation at the end, which the first run did without
    identity = read_identity(folder)
    assert identity["resumed"] == [{"steps": 0, "level": "anew", "lost": ["its checkpoints are gone"]}]
    assert identity["first_checkpoint"] == 128 and identity["status"] == "finished"
    resumed(folder)  # and is a run like any other
    assert read_identity(folder)["resumed"][1:] == [{"steps": 384, "level": "exact"}]


def test_a_run_that_begins_again_and_is_killed_at_once_is_a_run_without_a_checkpoint(finished, folder):
    shutil.rmtree(folder / "checkpoints")
    made = ludus.Trainer.resume(folder, fallback=True, verbose=False)
    made.judge.saw = lambda rows: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made.train()
    resumed(folder)
    assert journal_of(folder) == journal_of(finished)
    assert [entry["level"] for entry in read_identity(folder)["resumed"]] == ["anew"]


def test_a_step_that_is_asked_for_by_its_number_is_never_replaced_by_the_beginning(folder, capsys):
    shutil.rmtree(folder / "checkpoints")
    assert "but had written some" in refused(folder, capsys, "--from", "128", "--fallback")
    note(folder, first_checkpoint=None)
    assert "has no checkpoint to go on from" in refused(folder, capsys, "--from", "128", "--fallback")


EARLIER = {"first_checkpoint": "absent"}


@pytest.mark.parametrize(
    ("identity", "rows", "had"),
    [
        ({"first_checkpoint": None, "status": "running"}, 8, False),
        ({"first_checkpoint": None, "status": "failed", "exit_reason": "LudusError: x"}, 8, False),
        ({"first_checkpoint": None, "status": "interrupted", "exit_reason": "KeyboardInterrupt: "}, 8, False),
        ({"first_checkpoint": [], "status": "running"}, 0, True),
        # Runs of versions that did not note it:
        ({**EARLIER, "status": "running"}, 8, True),
        ({**EARLIER, "status": "running"}, 4, False),
        ({**EARLIER, "status": "failed", "exit_reason": "LudusError: x"}, 8, True),
        ({**EARLIER, "status": "failed", "exit_reason": "LudusError: x"}, 4, False),
        ({**EARLIER, "status": "interrupted", "exit_reason": "SIGTERM"}, 4, True),
        ({**EARLIER, "status": "interrupted", "exit_reason": "SIGTERM", "iteration": 0}, 0, False),
        ({**EARLIER, "status": "interrupted", "exit_reason": "KeyboardInterrupt: "}, 4, False),
        ({**EARLIER, "status": "finished"}, 0, True),
        ({**EARLIER, "status": "running", "resumed": [{"steps": 128, "level": "exact"}]}, 0, True),
    ],
)
def test_what_tells_that_a_run_had_a_checkpoint(folder, identity, rows, had):
    shutil.rmtree(folder / "checkpoints")
    note(folder, **identity)
    journal = folder / "metrics.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:rows]))
    if had:
        with pytest.raises(ludus.LudusError, match="but had written some"):
            ludus.Trainer.resume(folder, verbose=False)
        return
    resumed(folder, 2)
    assert "resumed" not in read_identity(folder) and not (folder / "before-1").exists()
    assert [row["steps"] for row in read_journal(folder)] == [64, 128]


@pytest.mark.parametrize("error", [ludus.LudusError("x"), RuntimeError("x"), KeyboardInterrupt()])
def test_a_run_that_fails_before_its_first_checkpoint_begins_again_by_itself(error, tmp_path):
    def fail(rows):
        if made.record.iterations >= 2:
            raise error

    made = trainer("ppo jax", tmp_path / "run", checkpoint=CheckpointOptions(100, every_minutes=0), eval_frequency=0)
    made.judge.saw = fail
    with pytest.raises(type(error)):
        made.train(total_steps=iterations("ppo jax", 4))
    resumed(tmp_path / "run", 4)
    assert [row["steps"] for row in read_journal(tmp_path / "run")] == [64, 128, 192, 256]


# A damaged state


STATES = {
    "a flipped bit in the state": lambda folder: flip(folder / "state.safetensors"),
    "a flipped bit in the manifest": lambda folder: flip(folder / "manifest.json"),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "no state": lambda folder: (folder / "state.safetensors").unlink(),
    "a state that is cut": lambda folder: (folder / "state.safetensors").write_bytes(
        (folder / "state.safetensors").read_bytes()[:-1]
    ),
    "a state that is longer": lambda folder: (folder / "state.safetensors").write_bytes(
        (folder / "state.safetensors").read_bytes() + b"x"
    ),
    "an empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("name", STATES)
def test_a_damaged_state_is_named_with_fallback_which_takes_the_one_before(finished, folder, name, capsys):
    STATES[name](folder / "checkpoints" / "384")
    said = refused(folder, capsys)
    assert "/checkpoints/384/" in said
    assert said.endswith("; ludus resume --fallback takes the one before, of 256 steps")
    resumed(folder, fallback=True)
    assert read_identity(folder)["resumed"] == [{"steps": 256, "level": "exact"}]
    assert differences(state_of(folder), state_of(finished)) == []


def test_the_line_names_the_one_before_that_is_whole(folder, capsys):
    for step, name in (("384", "no manifest"), ("256", "a flipped bit in the state"), ("192", "an empty folder")):
        STATES[name](folder / "checkpoints" / step)
    assert refused(folder, capsys).endswith("; ludus resume --fallback takes the one before, of 128 steps")
    resumed(folder, fallback=True)
    assert read_identity(folder)["resumed"] == [{"steps": 128, "level": "exact"}]


@pytest.mark.parametrize("name", STATES)
def test_where_none_is_whole_the_line_says_what_is_left_and_fallback_begins_again(finished, folder, name, capsys):
    for step in (128, 192, 256):
        shutil.rmtree(folder / "checkpoints" / str(step))
    STATES[name](folder / "checkpoints" / "384")
    before = content(folder)
    said = refused(folder, capsys)
    assert "no checkpoint before it is whole; ludus resume --fallback begins the run again and keeps what is" in said
    assert "policies/ still holds best_eval_pi_ckpt, best_return_pi_ckpt, final_actor" in said
    assert "no checkpoint before it is whole" in refused(folder, capsys, "--from", "384", "--fallback")
    resumed(folder, fallback=True)
    assert read_identity(folder)["resumed"] == [{"steps": 0, "level": "anew", "lost": ["no checkpoint is whole"]}]
    places = ("policies/", "metrics.jsonl", "checkpoints/")
    assert content(folder / "before-1") == {name: data for name, data in before.items() if name.startswith(places)}
    assert differences(state_of(folder), state_of(finished)) == []
    assert journal_of(folder) == journal_of(finished)
