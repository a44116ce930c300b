"""A run folder that is renamed or removed while its run is training: one clear line, and no second half of it."""

import contextlib
import shutil

import pytest
from resume_runs import iterations, run, trainer

import ludus
from ludus.runs.folder import is_training
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

pytestmark = pytest.mark.slow


def train_and(act, folder) -> None:
    """Train, and do something to the folder after the third iteration."""
    made = trainer("ppo gym", folder)

    def callback(metrics) -> None:
        if metrics["iteration"] == 3:
            made.keeper.settle()  # what is being written in this very moment is written
            act()

    with contextlib.closing(made.env), pytest.raises(ludus.LudusError, match="was moved or removed while the run"):
        made.train(total_steps=iterations("ppo gym", 8), callback=callback)


def test_a_run_whose_folder_was_renamed_stops_and_goes_on_there(tmp_path):
    run("ppo gym", tmp_path / "straight", 8)
    folder, other = tmp_path / "run", tmp_path / "other"
    train_and(lambda: folder.rename(other), folder)
    assert not folder.exists()
    assert not is_training(other)
    resumed = ludus.Trainer.resume(other, verbose=False)
    resumed.final_episodes = 0
    with contextlib.closing(resumed.env):
        resumed.train()
    assert differences(state_of(tmp_path / "straight"), state_of(other)) == []
    assert journal_of(tmp_path / "straight") == journal_of(other)


def test_a_run_whose_folder_was_removed_stops_and_does_not_make_it_anew(tmp_path):
    def remove() -> None:
        while (tmp_path / "run").exists():  # other threads are writing in it
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    train_and(remove, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_into_a_folder_that_has_taken_the_place_of_another(tmp_path):
    folder, other = tmp_path / "run", tmp_path / "other"

    def exchange() -> None:
        folder.rename(other)
        run("ppo jax", folder, 2)
        before.update({path: path.read_bytes() for path in folder.rglob("*") if path.is_file()})

    before: dict = {}
    train_and(exchange, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "log.txt"} == {
        path: data for path, data in before.items() if path.name != "log.txt"
    }
