"""The protocol: scenarios are drawn for training without end, and are fixed for evaluation."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reach import Reach

import ludus
from ludus.envs.scenarios.base import generated
from ludus.envs.scenarios.held_out import BLOCK, Generated, held_out
from ludus.types import LudusError


def goals(env: Any, count: int, seed: int = 0) -> np.ndarray:
    batch = ludus.make_env(env, count)
    return np.asarray(jax.jit(batch.reset)(jax.random.split(jax.random.key(seed), count)).env["goal"])


@pytest.mark.requirement("S2.5")
def test_training_is_seeded_and_never_the_same_scenario_twice():
    first, again, other = goals(Reach, 200), goals(Reach, 200), goals(Reach, 200, seed=1)
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.concatenate([first, other])[:, 0])) == 400


@pytest.mark.requirement("S2.5")
def test_what_cannot_be_used_is_drawn_anew():
    training = goals(Reach, 300)
    assert (training[:, 0] < -1.0).all()
    assert (training[:, 0] > -3.0).all()


def test_one_that_can_never_be_used_is_taken_in_the_end():
    scenario = jax.jit(lambda key: generated(Reach(), key, "training", {"difficulty": 0.01}))(jax.random.key(0))
    assert np.isfinite(scenario["goal"]).all()
    with pytest.raises(LudusError, match="none of 1280 scenarios generated for training can be used"):
        never = type("Never", (Reach,), {"is_usable": lambda self, scenario: jnp.bool_(False)})
        Generated(never(), "training", 0).up_to(1)


@pytest.mark.requirement("S2.5", "S2.17")
def test_the_evaluation_set_is_fixed_and_disjoint_by_construction():
    batch = ludus.make_env(Reach, 3)
    rows = batch.held_out(0, 100)
    assert rows["goal"].shape == (100, 2)
    assert (rows["goal"][:, 0] > 1.0).all(), "no goal of training lies there"
    assert set(rows["about"]["kind"].tolist()) == {2}
    for first, count in ((0, 1), (3, 5), (70, 30), (98, 4)):
        part = batch.held_out(first, count)
        numbers = (first + np.arange(count)) % 100
        np.testing.assert_array_equal(part["goal"], rows["goal"][numbers])
    fresh = Generated(Reach(), "evaluation", 0).up_to(100)["scenario/goal"]
    np.testing.assert_array_equal(rows["goal"], fresh[:100], "the same in every process")
    assert batch.num_held_out == 100
    assert ludus.make_env("CartPole-v1").num_held_out is None
    assert ludus.make_env("CartPole-v1").held_out(0, 3) == ()


def test_a_scenario_does_not_depend_on_how_many_are_made():
    few, many = Generated(Reach(), "training", 3), Generated(Reach(), "training", 3)
    np.testing.assert_array_equal(few.up_to(2)["scenario/goal"][:2], many.up_to(5 * BLOCK)["scenario/goal"][:2])
    assert many.skipped > BLOCK, "a third of them is too near"
    other = Generated(Reach(), "training", 4).up_to(2)["scenario/goal"]
    assert (other[:2, 0] != few.up_to(2)["scenario/goal"][:2, 0]).all()


@pytest.mark.slow
@pytest.mark.requirement("S2.17", "S2.29")
def test_episode_i_of_an_evaluation_is_in_scenario_i_whatever_the_seed():
    env = ludus.make_env(Reach, 2)
    trainer = ludus.Trainer(ludus.PPO(batch_size=32, minibatch_size=32), env, ludus.Settings(verbose=False))
    rows = held_out(Reach(), None, 0, 25)["goal"][:, 0]
    for seed, episodes in ((0, 25), (7, 25), (0, 10)):
        evaluation = ludus.evaluate(trainer.policy, env, episodes, seed)
        np.testing.assert_allclose(evaluation.info["info/goal_x/last"], rows[:episodes])
    again = ludus.evaluate(trainer.policy, env, 25)
    np.testing.assert_array_equal(again.returns, ludus.evaluate(trainer.policy, env, 25).returns)
    whole = ludus.evaluate(trainer.policy, env, "all")
    assert len(whole.returns) == 100
    with pytest.raises(LudusError, match="episodes=all: jax:CartPole-v1 has no evaluation set"):
        cart = ludus.make_env("CartPole-v1", 2)
        trainer = ludus.Trainer(ludus.PPO(batch_size=32, minibatch_size=32), cart, ludus.Settings(verbose=False))
        ludus.evaluate(trainer.policy, cart, "all")


WRONG = {
    "another shape": (
        {"generate": lambda self, key, split, parameters: {"goal": jnp.zeros(2 if split == "training" else 3)}},
        "generate must return scenarios of the same shapes and types for both splits",
    ),
    "no dict": ({"generate": lambda self, key, split, parameters: jnp.zeros(2)}, "must return a dict of arrays"),
    "a vector": ({"is_usable": lambda self, scenario: scenario["goal"] > 0}, "is_usable must return one bool"),
    "a fraction": ({"template": lambda self, scenario: jnp.float32(0.5)}, "template must return one int"),
    "both": (
        {"templates": {"training": ("near", "far"), "evaluation": ("far",)}},
        "its template 'far' belongs to training and evaluation",
    ),
    "not arrays": ({"generate": lambda self, key, split, parameters: 1 + "1"}, "must return arrays"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_an_environment_that_breaks_the_protocol_is_refused_in_one_line(changes, message):
    broken = dataclass(frozen=True)(type("Broken", (Reach,), changes))
    with pytest.raises(LudusError) as refused:
        ludus.make_env(broken)
    assert "\n" not in str(refused.value)
    assert message in str(refused.value)


def test_parameters_reach_generate():
    batch = ludus.make_env(Reach, 4)
    chances = batch.chances(SimpleNamespace(parameters={"difficulty": jnp.float32(0.5)}, starts=(), data=()))
    half = np.asarray(batch.reset(jax.random.split(jax.random.key(0), 4), chances).env["goal"])
    assert (half[:, 0] > -1.5).all()
