"""The probes' stated answers, found again by brute force, and the mistakes they are there to catch."""

from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

from ludus.envs.batch import JaxEnv
from ludus.envs.native.probes import PROBES, Probe
from ludus.spaces import Box
from ludus.types import Transition

GAMMA = 0.8


def follow_optimal_policy(probe: Probe) -> tuple[Transition, np.ndarray]:
    """Steps of a batch `[T, B, ...]` that acts optimally, and what each copy shows after its reset."""
    batch = JaxEnv(probe, 8, "probe", probe.max_episode_steps)
    draws = batch.draw(jax.random.key(1), jax.random.key(2), 8)
    state = batch.reset(jax.random.split(jax.random.key(0), 8))
    rows, shown, advance = [], [], jax.jit(batch.step)
    for time in range(8):
        actions = np.array([probe.optimal_action(tuple(obs)) for obs in np.asarray(state.obs)])
        actions = actions.reshape(8, *probe.action_space.shape).astype(probe.action_space.dtype)
        after, step = advance(state, actions, jax.tree.map(lambda leaf, time=time: leaf[time], draws))
        rows.append(Transition(state.obs, actions, step.reward, step.terminated, step.truncated, step.obs, None))
        shown.append(after.obs)
        state = after
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows), np.stack(shown)


def solve(steps: Transition, ended: np.ndarray, next_obs: np.ndarray) -> dict[tuple[float, ...], float]:
    """Solve V(obs) = mean(reward + gamma * V(next_obs), the latter only unless ended) exactly, as a table."""
    names = sorted({tuple(row) for row in steps.obs.reshape(-1, steps.obs.shape[-1]).tolist()})
    rewards, follow, visits = np.zeros(len(names)), np.zeros((len(names),) * 2), np.zeros(len(names))
    for where in np.ndindex(ended.shape):
        row = names.index(tuple(steps.obs[where].tolist()))
        visits[row] += 1
        rewards[row] += steps.reward[where]
        if not ended[where]:
            follow[row, names.index(tuple(next_obs[where].tolist()))] += 1
    values = np.linalg.solve(np.eye(len(names)) - GAMMA * follow / visits[:, None], rewards / visits)
    return dict(zip(names, values.tolist(), strict=True))


@pytest.mark.parametrize("name", [name for name in PROBES if name != "memory"])  # whose values need a memory
def test_stated_values_solve_the_bellman_equation(name: str) -> None:
    probe = PROBES[name]()
    steps, _ = follow_optimal_policy(probe)
    assert solve(steps, steps.terminated, steps.next_obs) == pytest.approx(dict(probe.optimal_values(GAMMA)))
    assert bool(steps.truncated.any()) == (name in ("endless-chain", "loud-reset")) != bool(steps.terminated.any())


def discounted_return(probe: Probe, state: Any, actions: tuple[Any, ...]) -> float:
    total = 0.0
    for time, action in enumerate(actions):
        state, step = probe.step(state, action, jax.random.key(0))
        total += GAMMA**time * float(step.reward)
        if step.terminated:
            return total
    raise AssertionError("the episode should have ended")


@pytest.mark.parametrize("name", ["action-reward", "matched-action", "continuous-target", "memory"])
def test_no_action_beats_the_stated_one(name: str) -> None:
    probe, seen = PROBES[name](), set()
    steps = 3 if name == "memory" else 1
    choices = np.linspace(-0.3, 2.0, 231)[:, None] if isinstance(probe.action_space, Box) else range(2)
    for seed in range(8):
        state, obs = probe.reset(jax.random.key(seed))
        key = tuple(np.asarray(obs).tolist())
        if key in seen:
            continue
        seen.add(key)
        plans = list(product(choices, repeat=steps))
        returns = np.array([discounted_return(probe, state, plan) for plan in plans])
        best = np.flatnonzero(returns > returns.max() - 1e-6)
        assert [float(np.squeeze(plans[plan][-1])) for plan in best] == pytest.approx(
            [probe.optimal_action(key)] * 2 ** (steps - 1)
        )
        assert returns.max() == pytest.approx(dict(probe.optimal_values(GAMMA))[key], abs=1e-6)
    assert len(seen) == len(probe.optimal_values(GAMMA))


def test_memory_shows_its_cue_once_and_pays_at_the_third_step() -> None:
    steps, _ = follow_optimal_policy(PROBES["memory"]())
    assert np.all(abs(steps.obs[[0, 3, 6]]) == 1) and not steps.obs[[1, 2, 4, 5, 7]].any()
    assert not steps.next_obs.any() and not steps.truncated.any()
    assert np.all(steps.terminated == steps.terminated[:, :1])
    np.testing.assert_array_equal(np.flatnonzero(steps.terminated[:, 0]), [2, 5])
    assert not steps.reward[~steps.terminated].any()


@pytest.mark.parametrize("name", ["endless-chain", "loud-reset"])
def test_a_cut_taken_for_an_end_is_caught(name: str) -> None:
    steps, _ = follow_optimal_policy(PROBES[name]())
    assert_far(name, solve(steps, steps.terminated | steps.truncated, steps.next_obs))


@pytest.mark.parametrize("name", ["delayed-reward", "finite-chain", "constant-reward"])
def test_an_end_taken_for_a_cut_is_caught(name: str) -> None:
    steps, _ = follow_optimal_policy(PROBES[name]())
    assert_far(name, solve(steps, np.zeros_like(steps.terminated), steps.next_obs))


def test_a_reset_observation_taken_for_the_successor_is_caught() -> None:
    steps, shown = follow_optimal_policy(PROBES["loud-reset"]())
    assert_far("loud-reset", solve(steps, steps.terminated, shown))


def assert_far(name: str, wrong: dict[tuple[float, ...], float]) -> None:
    right = dict(PROBES[name]().optimal_values(GAMMA))
    assert max(abs(wrong[obs] - value) for obs, value in right.items()) > 1


def test_probes_are_hashable_and_differ() -> None:
    for name, probe in PROBES.items():
        assert hash(probe()) == hash(probe()) and probe() == probe()
        assert sum(probe() == other() for other in PROBES.values()) == 1, name
