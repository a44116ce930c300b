"""The native environments are Gymnasium's, one step at a time, over whole episodes, and inside a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ludus.envs.batch import BatchState, Draw, JaxEnv
from ludus.envs.native.classic_control import CLASSIC, Acrobot, CartPole, Pendulum
from ludus.spaces import Box, Discrete
from ludus.types import Step

PAIRS = 2500
TOLERANCE = 3e-6
PI = np.pi


@dataclass(frozen=True)
class Case:
    """What a test must know of one task: where states lie, where episodes start, and how close to the end one is."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    start_low: tuple[float, ...]
    start_high: tuple[float, ...]
    margin: Callable[[np.ndarray], np.ndarray]
    """Distance of a reached state from the place where an episode terminates, or infinity."""
    observe: Callable[[np.ndarray], np.ndarray] = np.asarray


def cart_pole_margin(state: np.ndarray) -> np.ndarray:
    return np.minimum(abs(abs(state[:, 0]) - 2.4), abs(abs(state[:, 2]) - PI / 15))


def acrobot_margin(state: np.ndarray) -> np.ndarray:
    return abs(-np.cos(state[:, 0]) - np.cos(state[:, 0] + state[:, 1]) - 1)


def acrobot_observe(state: np.ndarray) -> np.ndarray:
    first, second, *speeds = state.T
    return np.stack([np.cos(first), np.sin(first), np.cos(second), np.sin(second), *speeds], axis=1)


def pendulum_observe(state: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(state[:, 0]), np.sin(state[:, 0]), state[:, 1]], axis=1)


# Ranges are a little wider than what episodes visit, so that walls, limits and terminations are met often. Only
# Acrobot's speeds stay below their limits: there float32 itself is worse than the tolerance (see the test below).
CASES = {
    "CartPole-v1": Case((-2.5, -3, -0.22, -3.5), (2.5, 3, 0.22, 3.5), (-0.05,) * 4, (0.05,) * 4, cart_pole_margin),
    "Acrobot-v1": Case(
        (-PI, -PI, -4, -8), (PI, PI, 4, 8), (-0.1,) * 4, (0.1,) * 4, acrobot_margin, observe=acrobot_observe
    ),
    "MountainCar-v0": Case((-1.2, -0.07), (0.6, 0.07), (-0.6, 0), (-0.4, 0), lambda state: abs(state[:, 0] - 0.5)),
    "MountainCarContinuous-v0": Case(
        (-1.2, -0.07), (0.6, 0.07), (-0.6, 0), (-0.4, 0), lambda state: abs(state[:, 0] - 0.45)
    ),
    "Pendulum-v1": Case(
        (-PI, -8), (PI, 8), (-PI, -1), (PI, 1), lambda state: np.full(len(state), np.inf), observe=pendulum_observe
    ),
}

each_task = pytest.mark.parametrize("name", CLASSIC)


def make(name: str, **options: Any) -> Any:
    return gymnasium.make(name, **options)  # untyped, for its tasks do not declare what the tests set


def sample_states(case: Case, low: Any = None, high: Any = None) -> np.ndarray:
    rng = np.random.default_rng(1)
    states = rng.uniform(case.low if low is None else low, case.high if high is None else high, (PAIRS, len(case.low)))
    return states.astype(np.float32)


def sample_actions(space: Discrete | Box) -> np.ndarray:
    rng = np.random.default_rng(2)
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=PAIRS).astype(np.int32)
    low, high = space.bounds
    return rng.uniform(1.5 * low, 1.5 * high, (PAIRS, *space.shape)).astype(np.float32)  # also beyond the bounds


def gymnasium_step(task: Any, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, Step]:
    task.state = state.astype(np.float64)
    task.steps_beyond_terminated = None  # CartPole pays nothing after the first fall
    obs, reward, terminated, truncated, _ = task.step(action)
    return np.asarray(task.state, np.float64), Step(obs, reward, terminated, truncated)


def stack(rows: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def step_both(task: Any, environment: Any, states: np.ndarray) -> tuple[Step, np.ndarray, Step]:
    """Our steps, Gymnasium's reached states and Gymnasium's steps, for random actions in the given states."""
    actions = sample_actions(environment.action_space)
    keys = jax.random.split(jax.random.key(0), PAIRS)
    _, ours = jax.jit(jax.vmap(environment.step))(states, actions, keys)
    reached, theirs = stack([gymnasium_step(task, *pair) for pair in zip(states, actions, strict=True)])
    return ours, reached, theirs


def assert_same_steps(ours: Step, theirs: Step, sure: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert (~sure).mean() < 0.002
    np.testing.assert_allclose(ours.obs, theirs.obs, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(np.asarray(ours.terminated)[sure], theirs.terminated[sure])
    np.testing.assert_allclose(np.asarray(ours.reward)[sure], theirs.reward[sure], rtol=tolerance, atol=tolerance)
    assert not np.any(ours.truncated)


@pytest.mark.requirement("S2.9")
@each_task
def test_a_step_is_gymnasiums(name: str) -> None:
    case, task = CASES[name], make(name).unwrapped
    ours, reached, theirs = step_both(task, CLASSIC[name](), sample_states(case))
    assert_same_steps(ours, theirs, sure=case.margin(reached) > TOLERANCE)
    assert ours.obs.dtype == jnp.float32
    if name != "Pendulum-v1":
        assert 0.01 < theirs.terminated.mean() < 0.99


def test_acrobot_limits_its_speeds_as_gymnasium_does() -> None:
    # At such speeds one step turns float32 rounding into errors of up to 1e-3, hence another tolerance.
    case, task, limit = CASES["Acrobot-v1"], make("Acrobot-v1").unwrapped, np.array([PI, PI, 4 * PI, 9 * PI])
    ours, reached, theirs = step_both(task, Acrobot(), sample_states(case, -limit, limit))
    assert_same_steps(ours, theirs, sure=case.margin(reached) > 1e-3, tolerance=1e-3)
    assert np.all(np.mean(abs(theirs.obs[:, 4:]) >= limit[2:].astype(np.float32), axis=0) > 0.01)


def test_the_physics_are_the_fields() -> None:
    task = make("CartPole-v1").unwrapped
    task.gravity, task.masscart, task.masspole, task.length, task.force_mag, task.tau = 7.0, 1.3, 0.3, 0.8, 6.0, 0.03
    task.total_mass, task.polemass_length = 1.6, 0.24
    check_physics("CartPole-v1", task, CartPole(7.0, 1.3, 0.3, 0.8, 6.0, 0.03))

    task = make("Acrobot-v1").unwrapped
    task.LINK_LENGTH_1 = task.LINK_LENGTH_2 = 1.2
    task.LINK_MASS_1 = task.LINK_MASS_2 = 0.9
    task.LINK_COM_POS_1 = task.LINK_COM_POS_2 = 0.7
    task.LINK_MOI, task.dt = 1.4, 0.1
    check_physics("Acrobot-v1", task, Acrobot(9.8, 1.2, 0.9, 0.7, 1.4, 0.1))

    task = make("Pendulum-v1", g=9.0).unwrapped
    task.m, task.l, task.dt = 1.2, 0.8, 0.04
    check_physics("Pendulum-v1", task, Pendulum(9.0, 1.2, 0.8, 0.04))


def check_physics(name: str, task: Any, environment: Any) -> None:
    case = CASES[name]
    ours, reached, theirs = step_both(task, environment, sample_states(case))
    assert_same_steps(ours, theirs, sure=case.margin(reached) > TOLERANCE)


@each_task
def test_spaces_are_gymnasiums(name: str) -> None:
    theirs, ours = make(name), CLASSIC[name]()
    for our_space, their_space in [
        (ours.observation_space, theirs.observation_space),
        (ours.action_space, theirs.action_space),
    ]:
        assert our_space.shape == their_space.shape
        if isinstance(our_space, Discrete):
            assert our_space.n == their_space.n
        else:
            assert our_space.dtype == their_space.dtype
            np.testing.assert_array_equal(our_space.bounds, (their_space.low, their_space.high))
    assert ours.max_episode_steps == theirs.spec.max_episode_steps


@each_task
def test_equal_instances_share_one_program(name: str) -> None:
    assert hash(CLASSIC[name]()) == hash(CLASSIC[name]())
    assert CLASSIC[name]() == CLASSIC[name]()


@each_task
def test_starts_are_uniform_over_gymnasiums_range(name: str) -> None:
    case, task = CASES[name], make(name).unwrapped
    states, obs = jax.jit(jax.vmap(CLASSIC[name]().reset))(jax.random.split(jax.random.key(0), 20_000))
    task.reset(seed=0)
    reference = np.stack([(task.reset(), task.state)[1] for _ in range(500)])
    np.testing.assert_allclose(obs, case.observe(np.asarray(states)), atol=TOLERANCE)
    for sample, slack in [(np.asarray(states), 0.02), (reference, 0.1)]:
        assert_uniform(sample, np.array(case.start_low), np.array(case.start_high), slack)


def assert_uniform(sample: np.ndarray, low: np.ndarray, high: np.ndarray, slack: float) -> None:
    assert np.all(sample >= np.float32(low)) and np.all(sample <= np.float32(high))
    ranks = np.linspace(0, 1, len(sample))[:, None]
    assert np.all(abs(np.sort(sample, axis=0) - (low + ranks * (high - low))) <= slack * (high - low))


def cautious(name: str, obs: np.ndarray) -> Any:
    """Act so that an episode lasts as long as its time limit."""
    return {
        "CartPole-v1": lambda: np.int32(obs @ [0.1, 0.3, 1.0, 1.0] > 0),
        "Acrobot-v1": lambda: np.int32(1),
        "MountainCar-v0": lambda: np.int32(1),
        "MountainCarContinuous-v0": lambda: np.array([0.1], np.float32),
        "Pendulum-v1": lambda: np.array([2 * np.sin(5 * obs[2])], np.float32),
    }[name]()


def daring(name: str, obs: np.ndarray) -> Any:
    """Act so that an episode terminates: push over, or along the motion."""
    return {
        "CartPole-v1": lambda: np.int32(1),
        "Acrobot-v1": lambda: np.int32(2 if obs[5] > 0 else 0),
        "MountainCar-v0": lambda: np.int32(2 if obs[1] >= 0 else 0),
        "MountainCarContinuous-v0": lambda: np.array([1 if obs[1] >= 0 else -1], np.float32),
    }[name]()


@dataclass
class Pair:
    """One of Gymnasium's environments, and ours started in the same state."""

    task: Any
    batch: JaxEnv
    state: BatchState
    draw: Draw

    @classmethod
    def start(cls, name: str, max_episode_steps: int | None = None) -> "Pair":
        task = make(name, max_episode_steps=max_episode_steps)
        task.reset(seed=3)
        environment = CLASSIC[name]()
        batch = JaxEnv(environment, 1, name, max_episode_steps or environment.max_episode_steps)
        state = batch.reset(jax.random.split(jax.random.key(0), 1))
        draw = jax.tree.map(lambda leaf: leaf[0], batch.draw(jax.random.key(1), jax.random.key(2), 1))
        pair = cls(task, batch, state, draw)
        pair.synchronise()
        return pair

    def synchronise(self) -> None:
        self.state = self.state._replace(env=np.asarray(self.task.unwrapped.state, np.float32)[None])

    def episode(self, policy: Callable[[np.ndarray], Any], drifting: bool) -> list[tuple[Step, Step]]:
        """Both sides' steps of one episode under Gymnasium's observations."""
        advance, steps, ended = jax.jit(self.batch.step), [], False
        obs = CASES[self.batch.id].observe(np.asarray(self.state.env))[0]
        while not ended:
            action = policy(obs)
            self.state, ours = advance(self.state, action[None], self.draw)
            obs, reward, terminated, truncated, _ = self.task.step(action)
            steps.append((jax.device_get(ours), Step(obs, reward, terminated, truncated)))
            ended = terminated or truncated
            if not (drifting or ended):
                self.synchronise()
        return steps


# Balanced on top or swung about, these two double a rounding error within a few steps.
CHAOTIC = ("CartPole-v1", "Acrobot-v1")


def assert_same_episode(steps: list[tuple[Step, Step]], tolerance: float) -> None:
    total = 0.0
    for length, (ours, theirs) in enumerate(steps, start=1):
        total += float(theirs.reward)
        np.testing.assert_allclose(ours.obs[0], theirs.obs, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(ours.reward[0], theirs.reward, rtol=tolerance, atol=tolerance)
        assert (bool(ours.terminated[0]), bool(ours.truncated[0])) == (theirs.terminated, theirs.truncated)
        np.testing.assert_allclose(ours.info[0], [total], rtol=1e-4)
        assert int(ours.info[1][0]) == length


@pytest.mark.requirement("S3.14")
@each_task
def test_an_episode_is_cut_where_gymnasium_cuts_it(name: str) -> None:
    pair = Pair.start(name)
    steps = pair.episode(partial(cautious, name), drifting=name not in CHAOTIC)
    assert_same_episode(steps, tolerance=1e-4)
    last, _ = steps[-1]
    assert len(steps) == pair.batch.max_episode_steps
    assert bool(last.truncated[0]) and not bool(last.terminated[0])
    assert int(pair.state.episode_length[0]) == 0


@pytest.mark.requirement("S2.9")
@pytest.mark.parametrize("name", [name for name in CLASSIC if name != "Pendulum-v1"])
def test_an_episode_terminates_where_gymnasiums_does(name: str) -> None:
    pair = Pair.start(name)
    steps = pair.episode(partial(daring, name), drifting=name not in CHAOTIC)
    assert_same_episode(steps, tolerance=1e-4)
    last, _ = steps[-1]
    assert bool(last.terminated[0]) and not bool(last.truncated[0])
    assert len(steps) < (pair.batch.max_episode_steps or 0)


@pytest.mark.requirement("S2.9")
def test_an_end_and_a_cut_on_the_same_step_both_stand() -> None:
    fall = len(Pair.start("CartPole-v1").episode(partial(daring, "CartPole-v1"), drifting=True))
    steps = Pair.start("CartPole-v1", max_episode_steps=fall).episode(partial(daring, "CartPole-v1"), drifting=True)
    assert_same_episode(steps, TOLERANCE)
    last, _ = steps[-1]
    assert len(steps) == fall
    assert bool(last.terminated[0]) and bool(last.truncated[0])


@pytest.mark.requirement("S2.9")
@pytest.mark.parametrize(("name", "limit"), [("CartPole-v1", 12), ("Pendulum-v1", 7), ("CartPole-v1", None)])
def test_a_batch_restarts_on_the_step_that_ends_and_keeps_the_true_successor(name: str, limit: int | None) -> None:
    batch, length = JaxEnv(CLASSIC[name](), 16, name, limit), 60
    before, draws, actions, after, steps = run_batch(batch, length)
    step_env = jax.jit(jax.vmap(jax.vmap(batch.env.step)))
    env_states, true_steps = step_env(before.env, actions, draws.key)
    ended = np.asarray(steps.terminated | steps.truncated)
    assert ended.any(axis=0).all()

    # What the step reports is the simulator's own answer; only the carried state knows of the restart.
    np.testing.assert_allclose(steps.obs, true_steps.obs, atol=TOLERANCE)
    start_states, start_obs = draws.start
    for carried, start, successor in [(after.env, start_states, env_states), (after.obs, start_obs, true_steps.obs)]:
        np.testing.assert_array_equal(np.asarray(carried)[ended], np.asarray(start)[ended])
        np.testing.assert_allclose(np.asarray(carried)[~ended], np.asarray(successor)[~ended], atol=TOLERANCE)
    assert np.all(np.abs(np.asarray(steps.obs - start_obs))[ended].max(axis=-1) > 1e-3)
    assert_bookkeeping(steps, after, limit)


def run_batch(batch: JaxEnv, length: int) -> tuple[BatchState, Draw, Any, BatchState, Step]:
    """States before, draws, actions, states after and steps of `length` random steps, all `[T, B, ...]`."""
    state = batch.reset(jax.random.split(jax.random.key(4), batch.num_envs))
    draws = batch.draw(jax.random.key(5), jax.random.key(6), length)
    actions = sample_actions(batch.action_space)[: length * batch.num_envs]
    actions = actions.reshape(length, batch.num_envs, *batch.action_space.shape)  # [T * B, ...] -> [T, B, ...]

    def advance(state: BatchState, inputs: Any) -> tuple[BatchState, Any]:
        after, step = batch.step(state, *inputs)
        return after, (state, after, step)

    _, (before, after, steps) = jax.jit(partial(jax.lax.scan, advance))(state, (actions, draws))
    return before, draws, actions, jax.device_get(after), jax.device_get(steps)


def assert_bookkeeping(steps: Step, after: BatchState, limit: int | None) -> None:
    returns, lengths = np.zeros(steps.reward.shape[1]), np.zeros(steps.reward.shape[1], int)
    for time, reward in enumerate(np.asarray(steps.reward, np.float64)):
        returns, lengths = returns + reward, lengths + 1
        terminated, truncated = np.asarray(steps.terminated[time]), np.asarray(steps.truncated[time])
        np.testing.assert_array_equal(truncated, lengths >= (limit or np.inf))
        np.testing.assert_allclose(steps.info[0][time], returns, rtol=1e-4)
        np.testing.assert_array_equal(steps.info[1][time], lengths)
        returns, lengths = (np.where(terminated | truncated, 0, running) for running in (returns, lengths))
        np.testing.assert_allclose(after.episode_return[time], returns, rtol=1e-4)
        np.testing.assert_array_equal(after.episode_length[time], lengths)
