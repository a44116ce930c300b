"""A NaN or an infinity anywhere is named, and the state that comes back is the one that went in, bit for bit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTINUOUS, DISCRETE, NORMALIZED, VALUE_CLIPPING, random_rollout, random_state, small_ppo, update
from oracles import flat

from ludus.algorithms.finite_checks import FAULTS, first_fault
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.ppo import PPO, PPOState
from ludus.types import Rollout, Spec

KEY = jax.random.key(0)
BROKEN = [np.nan, np.inf, -np.inf]


def assert_fault(name: str, algorithm: PPO, state: PPOState, rollout: Rollout) -> None:
    new, metrics = update(as_arrays(algorithm), state, rollout, KEY)
    assert FAULTS[int(metrics["fault"])] == name
    jax.tree.map(np.testing.assert_array_equal, new, state)


def case(algorithm: PPO, spec: Spec = DISCRETE) -> tuple[PPOState, Rollout]:
    rng = np.random.default_rng(0)
    state = random_state(algorithm, spec, rng)
    return state, random_rollout(state, rng)


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize(("field", "name"), [("obs", "observation"), ("next_obs", "observation"), ("reward", "reward")])
@pytest.mark.parametrize("where", [0, -1])
def test_a_broken_input_is_named(value, field, name, where):
    algorithm = small_ppo()
    state, rollout = case(algorithm)
    getattr(rollout.steps, field)[where, 1] = value
    assert_fault(name, algorithm, state, rollout)


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("field", ["sample", "log_prob"])
def test_a_broken_action_is_named(value, field):
    algorithm = small_ppo()
    state, rollout = case(algorithm, CONTINUOUS)
    rollout.steps.extras[field][3, 2] = value
    assert_fault("action", algorithm, state, rollout)


def test_a_loss_that_overflows_is_named():
    algorithm = small_ppo()
    state, rollout = case(algorithm)
    rollout.steps.extras["log_prob"][3, 2] = -1e30  # finite, but its ratio is not, and the action was a bad one
    rollout.steps.reward[3, 2] = -100.0
    assert_fault("loss", algorithm, state, rollout)


def test_a_gradient_that_overflows_is_named():
    algorithm = small_ppo()
    state, rollout = case(algorithm)
    rollout.steps.extras["log_prob"][3, 2] = -1e30  # a good action: its infinite ratio is clipped, its slope is not
    rollout.steps.reward[3, 2] = 100.0
    assert_fault("gradient", algorithm, state, rollout)


def test_parameters_that_overflow_are_named():
    algorithm = small_ppo()
    state, rollout = case(algorithm)
    # A step size that no user can set: PPO refuses it, so it is put in behind the check.
    boundless = dataclasses.replace(as_arrays(algorithm), learning_rate=jnp.float32(np.inf))
    new, metrics = update(boundless, state, rollout, KEY)
    assert FAULTS[int(metrics["fault"])] == "parameter"
    jax.tree.map(np.testing.assert_array_equal, new, state)


@pytest.mark.parametrize("value", BROKEN)
def test_parameters_that_were_broken_already_are_a_fault(value):
    algorithm = small_ppo()
    state, rollout = case(algorithm)
    broken = dataclasses.replace(state, parameters=(state.parameters[0].at[0].set(value), *state.parameters[1:]))
    new, metrics = update(as_arrays(algorithm), broken, rollout, KEY)
    assert metrics["fault"] != 0
    jax.tree.map(np.testing.assert_array_equal, new, broken)


@pytest.mark.parametrize("name", ["observations", "returns", "rewards"])
def test_statistics_that_are_nan_are_a_fault(name):
    algorithm = small_ppo(**NORMALIZED, **VALUE_CLIPPING)
    state, rollout = case(algorithm)
    stats = getattr(state, name)
    broken = dataclasses.replace(state, **{name: stats._replace(variance=stats.variance * np.nan)})
    assert_fault("loss", algorithm, broken, rollout)


@pytest.mark.parametrize("field", ["obs", "reward"])
def test_statistics_that_overflow_are_a_fault(field):
    algorithm = small_ppo(**NORMALIZED, **VALUE_CLIPPING)
    state, rollout = case(algorithm)
    getattr(rollout.steps, field)[0, 0] = 1e30
    new, metrics = update(as_arrays(algorithm), state, rollout, KEY)
    assert metrics["fault"] != 0
    jax.tree.map(np.testing.assert_array_equal, new, state)


def test_the_earliest_of_several_faults_is_named():
    algorithm = small_ppo()
    state, rollout = case(algorithm)
    rollout.steps.reward[0, 0] = np.nan
    rollout.steps.obs[5, 1] = np.nan
    assert_fault("observation", algorithm, state, rollout)


def test_a_healthy_update_has_no_fault():
    algorithm = small_ppo()
    state, rollout = case(algorithm)
    new, metrics = update(as_arrays(algorithm), state, rollout, KEY)
    assert FAULTS[int(metrics["fault"])] == ""
    assert (flat(new.parameters) != flat(state.parameters)).any()


def test_integers_are_never_faults_and_nested_trees_are_searched():
    good, bad = jnp.zeros(3), jnp.array([0.0, np.nan])
    assert first_fault(observation=(jnp.arange(3), good), reward=good) == 0
    assert FAULTS[int(first_fault(observation=jnp.arange(3), action={"a": good, "b": (bad,)}))] == "action"
