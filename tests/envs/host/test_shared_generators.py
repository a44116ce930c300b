"""Environments that draw from np.random or random: a resumed run is the uninterrupted one, or says it is not."""

import contextlib
import logging
import random
import shutil

import numpy as np
import pytest
from worker_envs import Draws

import ludus
from ludus.envs.host import shared_generators
from ludus.envs.host.shared_generators import KEYS, ONE, WORDS, SharedGenerators, state
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

PPO = {"batch_size": 16, "minibatch_size": 16, "epochs_per_update": 1, "network": ludus.MLP((4,))}
ALWAYS = CheckpointOptions(every_iterations=1, every_minutes=0, keep_last=100)


@pytest.fixture
def kept():
    """Leave the process's own generators as they were, whatever a test does to them."""
    before = state()
    yield
    shared_generators._set(before)


def trained(folder, env, **settings) -> None:
    settings = {"seed": 5, "eval_frequency": 2, "eval_episodes": 2, "verbose": False, "checkpoint": ALWAYS, **settings}
    trainer = ludus.Trainer(ludus.PPO(**PPO), env, ludus.Settings(**settings, record_behaviour=False), run_dir=folder)
    trainer.final_episodes = 0
    with contextlib.closing(env):
        trainer.train(total_steps=96)


def gone_on(folder, step, env) -> str:
    """Resume a run to its end; return the level that it has said."""
    trainer = ludus.Trainer.resume(folder, step, env=env, verbose=False)
    trainer.final_episodes = 0
    with contextlib.closing(env):
        trainer.train()
    return read_identity(folder)["resumed"][-1]["level"]


@pytest.mark.slow
@pytest.mark.requirement("S4.13")
@pytest.mark.parametrize(
    ("when", "generator", "num_workers", "levels"),
    [
        ("never", "numpy", 0, {"exact"}),
        ("step", "numpy", 0, {"exact", "episode"}),  # exact where both episodes have just begun
        ("start", "python", 0, {"episode"}),
        ("some", "numpy", 0, {"exact", "episode"}),
        ("some", "python", 0, {"exact", "episode"}),
        ("some", "numpy", 2, {"exact", "episode"}),
        ("start", "python", 2, {"episode"}),
    ],
)
def test_what_says_that_it_is_exact_is_the_run_without_a_break(when, generator, num_workers, levels, tmp_path, kept):
    def made():
        return ludus.make_env(Draws, 2, num_workers=num_workers, when=when, generator=generator)

    trained(tmp_path / "straight", made())
    said = set()
    for step in Checkpoints(tmp_path / "straight").steps()[:-1]:
        copy = shutil.copytree(tmp_path / "straight", tmp_path / str(step))
        np.random.seed(step)  # noqa: NPY002  this process is another one
        random.seed(step)
        level = gone_on(copy, step, made())
        said.add(level)
        if level == "exact":
            assert differences(state_of(copy), state_of(tmp_path / "straight")) == []
            assert journal_of(copy) == journal_of(tmp_path / "straight")
    assert said == levels


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_whole_episodes_are_the_same_after_a_break(num_workers, tmp_path, kept):
    """Rollouts of whole episodes begin with a reset, which seeds what they draw from."""

    def made():
        return ludus.make_env(Draws, 2, num_workers=num_workers, when="step")

    trained(tmp_path / "straight", made(), collect="episodes")
    step = Checkpoints(tmp_path / "straight").steps()[1]
    copy = shutil.copytree(tmp_path / "straight", tmp_path / "copy")
    assert gone_on(copy, step, made()) == "exact"
    assert journal_of(copy) == journal_of(tmp_path / "straight")


def test_the_number_of_workers_can_change_where_nothing_was_drawn(tmp_path, kept):
    for when, level in (("never", "exact"), ("some", "episode")):
        folder = tmp_path / when
        trained(folder, ludus.make_env(Draws, 2, num_workers=2, when=when))
        assert gone_on(folder, Checkpoints(folder).steps()[-2], ludus.make_env(Draws, 2, when=when)) == level


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_user_is_told_what_to_draw_from(num_workers, caplog, kept):
    env = ludus.make_env(Draws, 2, num_workers=num_workers, when="step")
    with contextlib.closing(env), caplog.at_level(logging.WARNING):
        env.reset([0, 1])
        env.step(np.array([0, 0]))
        assert env.restore(env.snapshot()).is_lost.all()
    (said,) = caplog.messages
    assert said.startswith("object:Draws: draws random numbers from np.random or random") and "self.np_random" in said


def test_a_batch_gives_the_process_its_own_numbers_back(kept):
    """Also one that is made beside it, as those of evaluations are."""
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    np.random.standard_normal()  # noqa: NPY002  half of a pair is left over
    random.gauss(0, 1)
    before = state()
    env = ludus.make_env(Draws, 2, when="step")
    env.reset([0, 1])
    env.step(np.array([0, 0]))
    training = state()
    separate = env.remake(2)
    separate.reset([7, 8])
    separate.close()
    np.testing.assert_array_equal(state(), training)
    env.close()
    np.testing.assert_array_equal(state(), before)


def test_the_same_seeds_give_the_same_numbers(kept):
    seen = []
    for _ in range(2):
        env = ludus.make_env(Draws, 2, when="step")
        env.reset([3, 4])
        seen.append([env.step(np.array([0, 0])).reward.tolist() for _ in range(9)])
        env.close()
    assert seen[0] == seen[1] and len(set(np.ravel(seen[0]))) == 18


def test_a_snapshot_holds_every_bit(kept):
    generators = SharedGenerators()
    generators.seed([1])
    assert not shared_generators.was_used(generators.snapshot())
    np.random.standard_normal()  # noqa: NPY002
    random.gauss(0, 1)
    saved = generators.snapshot()
    assert saved.shape == (1, WORDS) and saved.dtype == np.uint32 and shared_generators.was_used(saved)
    drawn = [(np.random.standard_normal(), random.gauss(0, 1)) for _ in range(3)]  # noqa: NPY002
    assert generators.restore(saved)
    assert [(np.random.standard_normal(), random.gauss(0, 1)) for _ in range(3)] == drawn  # noqa: NPY002
    assert generators.restore(None), "an early checkpoint has none"


@pytest.mark.parametrize("place", [KEYS, ONE + KEYS])
def test_a_damaged_snapshot_is_refused(place, kept):
    saved = np.append(state(), np.uint32(0))[None]
    saved[0, place] = KEYS + 1
    for bad in (saved, saved[:, 1:], saved.astype(np.int64), saved[0]):
        with pytest.raises(ludus.LudusError, match="checkpoint: env/generators does not say where"):
            SharedGenerators().restore(bad)


def test_a_numpy_generator_of_another_kind_is_left_alone_and_nothing_is_exact(kept):
    usual, drawn = np.random.get_bit_generator(), np.append(state(), np.uint32(1))[None]
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        generators = SharedGenerators()
        generators.seed([1])
        saved = generators.snapshot()
        assert not saved[0, :ONE].any() and saved[0, ONE:].any()
        assert not generators.restore(saved) and not generators.restore(drawn)
    finally:
        np.random.set_bit_generator(usual)
