"""Training on scenarios: drawn from a stored set that is larger than what is on the device, or led by a curriculum."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ludus
from ludus.cli.main import main
from ludus.envs.scenarios import making
from ludus.envs.scenarios.making import made_by, make_set
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_config, read_identity
from ludus.runs.journal import read_journal
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.curriculum import LEAST_EPISODES
from ludus.training.verify import debug, journal_of, state_of
from ludus.types import LudusError

pytestmark = pytest.mark.slow

OFTEN = CheckpointOptions(every_iterations=2, every_minutes=0, keep_last=100)
STEPS, ITERATIONS = 64, 13
PPO = ludus.PPO(batch_size=STEPS, minibatch_size=32, epochs_per_update=2, network=ludus.MLP((16, 16)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """40 scenarios for training in five files."""
    from reach import Reach

    path = tmp_path_factory.mktemp("sets") / "reach"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(making, "MOST_IN_FILE", 8)
        told, counts = made_by(Reach(), "reach:Reach", {}, 0), {"training": 40, "evaluation": 12}
        make_set(Reach(), told, path, counts, lambda text: None)
    return str(path)


def trained(run: Path, env: Any, **more: Any) -> Path:
    settings = {"seed": 3, "eval_frequency": 0, "checkpoint": OFTEN, "verbose": False, "record_behaviour": False}
    trainer = ludus.Trainer(PPO, env, ludus.Settings(**{**settings, **more}), run_dir=run)
    trainer.final_episodes = 0
    trainer.train(total_steps=ITERATIONS * STEPS)
    return run


def stored(folder: str) -> Any:
    return ludus.make_env(
        "reach:Reach", 4, scenarios=folder, scenario_sampling="difficulty", scenario_buffer=16, scenario_refresh=3
    )


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "run", stored(folder))


def assert_same(run: Path, other: Path) -> None:
    ours, theirs = state_of(run), state_of(other)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.mark.requirement("S2.5", "S2.8", "S2.21")
def test_a_run_on_a_stored_set_is_resumed_bit_for_bit_from_before_and_after_an_exchange(run, tmp_path):
    steps = Checkpoints(run).steps()
    # Files are exchanged before iterations 3, 6, 9 and 12; a checkpoint of iteration 6 was written before that.
    for iteration in (2, 4, 6, 8, 12):
        assert iteration * STEPS in steps
        copy = shutil.copytree(run, tmp_path / str(iteration))
        resumed = ludus.Trainer.resume(copy, iteration * STEPS, verbose=False)
        resumed.final_episodes = 0
        resumed.train()
        assert read_identity(copy)["resumed"] == [{"steps": iteration * STEPS, "level": "exact"}]
        assert_same(run, copy)
        assert journal_of(copy) == journal_of(run)


@pytest.mark.requirement("S2.5")
def test_chunks_do_not_matter_and_the_seed_does(run, folder, tmp_path):
    chopped = trained(tmp_path / "chopped", stored(folder), callbacks=[lambda metrics: None], log_frequency=1)
    assert_same(run, chopped)
    other = trained(tmp_path / "other", stored(folder), seed=4)
    assert any((state_of(other)[name] != array).any() for name, array in state_of(run).items())


@pytest.mark.requirement("S2.4", "S2.5", "S2.18")
def test_what_is_drawn_is_of_the_set_and_what_fails_is_journalled(run, folder):
    state = state_of(run)
    number, held = state["carry/starts/number"], state["carry/starts/held"]
    assert number == 4 and len(held) == 2 and set(held.tolist()) <= set(range(5))
    placed = state["carry/env/env/scenario"]
    assert placed.shape == (4,) and (placed >= 0).all() and (placed < 40).all()
    failure = state["carry/starts/failure"]
    assert failure.shape == (40,) and failure.min() < 1.0
    rows = [row for row in read_journal(run) if row["kind"] == "train"]
    assert rows[-1]["scenarios/failure"] == pytest.approx(failure.mean(), rel=1e-5)
    ended = [row["info/goal_x/last"] for row in rows if "info/goal_x/last" in row]
    assert max(ended) < 0, "no scenario of the evaluation set is ever trained on"


@pytest.mark.requirement("S2.17", "S2.29")
def test_evaluation_plays_the_evaluation_scenarios_in_their_order(run, folder, tmp_path, capsys):
    held_out = stored(folder).held_out(0, 12)["goal"][:, 0]
    tables = []
    for name in ("a", "b"):
        table = tmp_path / f"{name}.csv"
        assert main(["evaluate", str(run), "--checkpoint", "latest", "--episodes", "all", "--csv", str(table)]) == 0
        tables.append(table.read_text())
    assert tables[0] == tables[1]
    header, *lines = [line.split(",") for line in tables[0].splitlines()]
    played = [float(line[header.index("info/goal_x/last")]) for line in lines]
    np.testing.assert_allclose(played, held_out, rtol=1e-5)
    assert "12 episodes" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--checkpoint", "latest", "--scenarios", str(tmp_path)]) == 2
    assert "is no set of scenarios" in capsys.readouterr().err


def test_a_run_whose_set_has_changed_is_not_resumed(run, tmp_path, capsys):
    config = read_config(run)
    elsewhere = shutil.copytree(config["env_options"]["scenarios"], tmp_path / "set")
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace(str(config["env_options"]["scenarios"]), str(elsewhere))
    )
    with pytest.raises(LudusError, match="env_options"):
        ludus.Trainer.resume(copy, verbose=False)


def test_the_search_for_a_nan_exchanges_files_too(run):
    assert debug(run, 4 * STEPS, iterations=4, say=lambda text: None) is None


LED = {"difficulty": "linear:0:1", "gravity": "reached:15:6:12:3"}


@pytest.fixture(scope="module")
def led(tmp_path_factory) -> Path:
    env = ludus.make_env("CartPole-v1", 4, randomize={"half_length": "uniform:0.3:0.8"})
    return trained(tmp_path_factory.mktemp("runs") / "led", env, curriculum=LED)


@pytest.mark.requirement("S1.34", "S2.21")
def test_a_curriculum_is_journalled_and_resumed_bit_for_bit(led, tmp_path):
    rows = [row for row in read_journal(led) if row["kind"] == "train"]
    assert len(rows) == ITERATIONS
    for number, row in enumerate(rows):
        assert row["curriculum/difficulty"] == pytest.approx(number / ITERATIONS, rel=1e-5)
    assert_stages([row["curriculum/gravity"] for row in rows], rows)
    assert read_config(led)["curriculum"] == LED
    for iteration in (4, 8):
        copy = shutil.copytree(led, tmp_path / str(iteration))
        resumed = ludus.Trainer.resume(copy, iteration * STEPS, verbose=False)
        resumed.final_episodes = 0
        resumed.train()
        assert_same(led, copy)
        assert journal_of(copy) == journal_of(led)


def assert_stages(values: list[float], rows: list[dict[str, Any]]) -> None:
    """The stages that the journal's own episodes give."""
    stage, episodes, total, before = 0, 0, 0.0, 0
    for value, row in zip(values, rows, strict=True):
        assert value == pytest.approx(6 + 2 * min(stage, 3), rel=1e-5)
        ended = row["episodes"] - before
        before, episodes = row["episodes"], episodes + ended
        total += ended * row.get("episode_return_mean", 0.0)
        if episodes >= LEAST_EPISODES and total >= 15 * episodes and stage < 3:
            stage, episodes, total = stage + 1, 0, 0.0
    assert stage > 0


@pytest.mark.requirement("S1.34")
def test_episodes_have_the_parameters_that_a_curriculum_says(led):
    state = state_of(led)
    gravity, lengths = state["carry/env/env/drawn/gravity"], state["carry/env/env/drawn/half_length"]
    said = {row["curriculum/gravity"] for row in read_journal(led) if row["kind"] == "train"}
    assert set(gravity.tolist()) <= said
    assert (lengths >= 0.3).all() and (lengths <= 0.8).all()


def test_a_curriculum_cannot_be_changed_in_a_resumed_run(led):
    with pytest.raises(LudusError, match=r"curriculum.difficulty: cannot be changed in a resumed run"):
        ludus.Trainer.resume(led, **{"curriculum.difficulty": "linear:0:0.5"})


@pytest.mark.requirement("S1.34")
def test_sac_learns_in_randomised_environments_too(tmp_path):
    env = ludus.make_env("Pendulum-v1", 4, randomize={"mass": "uniform:0.8:1.2"})
    sac = ludus.SAC(
        learning_starts=40, batch_size=16, unroll_length=8, replay_size=150, network=ludus.MLP((16, 16), "relu")
    )
    settings = ludus.Settings(
        seed=3,
        eval_frequency=0,
        checkpoint=OFTEN,
        verbose=False,
        record_behaviour=False,
        curriculum={"difficulty": "linear:0:1"},
    )
    trainer = ludus.Trainer(sac, env, settings, run_dir=tmp_path / "run")
    trainer.final_episodes = 2
    assert np.isfinite(trainer.train(total_steps=256).evaluation.returns).all()
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = ludus.Trainer.resume(copy, 128, verbose=False)
    resumed.final_episodes = 0
    resumed.train()
    assert_same(tmp_path / "run", copy)
