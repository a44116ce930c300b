"""Numbers in `info` become journal figures, on both paths, without a line of code."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worker_envs import LENGTH, Ledger

import ludus
from ludus.envs.base import Environment
from ludus.envs.host.info_stats import CAPACITY, EpisodeInfo, InfoMeans
from ludus.runs.journal import read_journal
from ludus.spaces import Box, Discrete
from ludus.types import Step

pytestmark = pytest.mark.slow

PPO = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 1}


def journal(env, folder, steps: int = 64, **options) -> list[dict]:
    trainer = ludus.Trainer(
        ludus.PPO(**PPO), env, ludus.Settings(verbose=False, eval_frequency=0, **options), run_dir=folder
    )
    trainer.train(total_steps=steps)
    env.close()
    return [row for row in read_journal(folder) if row["kind"] == "train"]


def test_means_and_last_values_of_every_number():
    info = EpisodeInfo(2)
    given = [{"a": 1, "b": True}, {"a": np.float32(2.5), "b": np.bool_(False), "c": np.int64(7)}, {"a": 4.0}]
    for step in given:
        info.next_step()
        info.add(0, {**step, "text": "x", "array": np.ones(1), "nested": {"a": 1}, "none": None, "complex": 1j})
        info.add(1, {"a": 100.0})
    info.end(0)
    means = InfoMeans()
    means.add((info,), np.array([True, False]), np.zeros(2, np.float32))
    assert means.figures() == {
        "info/a/mean": 2.5, "info/a/last": 4.0, "info/b/mean": 0.5, "info/c/mean": 7.0
    }  # fmt: skip
    info.next_step()
    info.add(0, {"a": 8.0})
    info.add(1, {"a": 0.0})
    means = InfoMeans()
    means.add((info,), np.array([True, True]), np.zeros(2, np.float32))
    assert means.figures()["info/a/mean"] == (8.0 + 300.0 / 4) / 2, (
        "an ended episode is forgotten, a running one is not"
    )
    assert means.figures()["info/a/last"] == 4.0
    assert "info/b/last" not in means.figures()


def test_more_names_than_can_be_followed_are_left_out():
    info = EpisodeInfo(1)
    info.add(0, {f"n{i}": i for i in range(CAPACITY + 5)})
    assert len(info.names) == CAPACITY


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collect", ["steps", "episodes"])
def test_a_gymnasium_environment(num_workers, collect, tmp_path):
    env = ludus.make_env(Ledger, 4, num_workers=num_workers)
    for row in journal(env, tmp_path / "run", 192, collect=collect):
        figures = {name: value for name, value in row.items() if name.startswith("info/")}
        # 1 .. 7 in every step; 4, 8, 12 in the even ones and so not in the last.
        assert figures == {"info/step/mean": 4.0, "info/step/last": LENGTH, "info/sometimes/mean": 8.0}


def test_an_episode_that_the_rollout_cuts_says_nothing(tmp_path):
    (row,) = journal(ludus.make_env(Ledger, 4, length=100), tmp_path / "run", 64, collect="episodes")
    assert row["episodes_cut"] == 4
    assert not [name for name in row if name.startswith("info/")]


def test_no_episode_no_figures(tmp_path):
    (row,) = journal(ludus.make_env(Ledger, 4, length=100), tmp_path / "run")
    assert not [name for name in row if name.startswith("info/")]


class Chatty(gymnasium.Env):
    """Has another name in its info at every step."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 20, False, {f"at {self.t}": self.t}


def test_names_that_come_later_compile_nothing(caplog):
    trainer = ludus.Trainer(
        ludus.PPO(**PPO), ludus.make_env(Chatty, 4), ludus.Settings(verbose=False, eval_frequency=0)
    )
    trainer.train(total_steps=64)
    caplog.set_level(logging.DEBUG)
    with jax.log_compiles():
        trainer.train(total_steps=192)
    assert not [message for message in caplog.messages if "_learn" in message and "ompil" in message]


@dataclass(frozen=True)
class Counting(Environment):
    """Ends after `length` steps; its info holds the step, whether it is odd, and what cannot be averaged."""

    length: int = 4
    observation_space: ClassVar = Box(-1.0, 100.0, (1,))
    action_space: ClassVar = Discrete(2)

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(1)

    def step(self, state, action, key):
        t = state + 1
        info = {"step": t, "odd": t % 2 == 1, "vector": jnp.ones(3), "nested": {"step": t}}
        return t, Step(jnp.zeros(1) + t, 1.0 * t, t == self.length, jnp.asarray(False), info)


@pytest.mark.parametrize("collect", ["steps", "episodes"])
def test_a_jax_environment(collect, tmp_path):
    rows = journal(ludus.make_env(Counting(), 4), tmp_path / "run", 64 if collect == "steps" else 16, collect=collect)
    for row in rows:
        figures = {name: value for name, value in row.items() if name.startswith("info/")}
        assert figures == {"info/step/mean": 2.5, "info/step/last": 4, "info/odd/mean": 0.5, "info/odd/last": 0}


def test_a_jax_episode_over_several_rollouts(tmp_path):
    rows = journal(ludus.make_env(Counting(length=24), 4), tmp_path / "run", 192)
    assert "info/step/mean" not in rows[0], "no episode has ended yet"
    assert (rows[1]["info/step/mean"], rows[1]["info/step/last"]) == (12.5, 24)
    assert (rows[2]["info/step/mean"], rows[2]["info/step/last"]) == (12.5, 24)


@pytest.mark.requirement("S2.18")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_evaluation_of_a_gymnasium_environment(num_workers, tmp_path):
    env = ludus.make_env(Ledger, 4, num_workers=num_workers)
    figures = evaluation_figures(env, tmp_path / "run")
    assert figures == {"eval_info/step/mean": 4.0, "eval_info/step/last": LENGTH, "eval_info/sometimes/mean": 8.0}


@pytest.mark.requirement("S2.18")
def test_an_evaluation_of_a_jax_environment(tmp_path):
    figures = evaluation_figures(ludus.make_env(Counting(), 4), tmp_path / "run")
    means = {"eval_info/step/mean": 2.5, "eval_info/odd/mean": 0.5}
    assert figures == means | {"eval_info/step/last": 4, "eval_info/odd/last": 0}


def evaluation_figures(env, folder) -> dict[str, float]:
    journal(env, folder)
    (row,) = (row for row in read_journal(folder) if row["kind"] == "evaluation")
    return {name: value for name, value in row.items() if name.startswith("eval_info/")}


@pytest.mark.requirement("S2.18")
@pytest.mark.parametrize("env", [Ledger, Counting()])
def test_an_episode_of_an_evaluation_that_is_cut_counts_up_to_there(env):
    env = ludus.make_env(env, 2)
    policy = ludus.Trainer(ludus.PPO(**PPO), env, ludus.Settings(verbose=False)).policy
    evaluation = ludus.evaluate(policy, env, 3, max_steps=3)
    assert evaluation.info["info/step/last"].tolist() == [3, 3, 3]
    assert evaluation.summary()["info/step/mean"] == 2


def test_no_info_costs_nothing():
    env = ludus.make_env("CartPole-v1", 2)
    assert jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))).info == {}


class Odd(Ledger):
    """Says what no journal can keep as it is."""

    def step(self, action):
        *answer, info = super().step(action)
        info |= {"huge": 10**400, "wide": 1e300, "below": -(10**400), "list": [1, 2], "array": np.zeros((2, 2))}
        info |= {"a\nb": 1.0, "\ud800": 2.0, "": 3.0, 7: 4.0, "x" * 10**5: 5.0, ("t", 1): 6.0, "../..": 7.0}
        return *answer, info | {"quad": np.longdouble("1e4000"), "inf": float("inf"), "is_success": 10**400}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_odd_info_never_ends_training(tmp_path, num_workers):
    rows = journal(ludus.make_env(Odd, 4, num_workers=num_workers), tmp_path / "run", 128)
    figures = {name: value for name, value in rows[-1].items() if name.startswith("info/")}
    assert figures["info/a?b/mean"] == 1.0 and figures["info/7/last"] == 4.0
    assert figures[f"info/{'x' * 100}/mean"] == 5.0
    assert np.isfinite(list(figures.values())).all()
    assert not any("huge" in name or "success" in name for name in figures)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_odd_names_keep_their_place_when_a_run_is_resumed():
    info, again = EpisodeInfo(1), EpisodeInfo(1)
    info.add(0, {"a\nb": 1.0, "c": 2.0})
    again.restore(info.snapshot())
    again.add(0, {"a\nb": 3.0, "c": 4.0})
    assert again.names == ["a?b", "c"]
    assert again.values[0, 0, :3].tolist() == [4.0, 6.0, 0.0]
