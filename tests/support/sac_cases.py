"""Random cases of SAC for its oracle, and how far `ludus` is from it: shared by tests and benchmarks/correctness.py."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import sac_oracles
from cases import relative, told

from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.replay import insert, sample
from ludus.algorithms.sac import SAC, Learner, Parameters, SACState
from ludus.envs.base import Environment
from ludus.networks.builders import MLP
from ludus.networks.distributions import TanhGaussian
from ludus.runtime.compilation import compiler_options, jit
from ludus.spaces import Box
from ludus.types import Rollout, Spec, Step, Transition

NUM_ENVS, NUM_STEPS = 3, 4
SPEC = Spec(Box(-10.0, 10.0, (3,)), Box(-0.3, 2.0, (2,)), NUM_ENVS)


@dataclass(frozen=True)
class Drift(Environment):
    """Drifts at random, pushed by the action, and ends now and then; it shows and takes what `SPEC` says."""

    observation_space = SPEC.observation_space
    action_space = SPEC.action_space
    max_episode_steps = 7

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start anywhere."""
        obs = jax.random.normal(key, (3,))
        return obs, obs

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Drift."""
        obs = 0.5 * state + jax.random.normal(key, (3,)) + 0.1 * jnp.sum(action)
        return obs, Step(obs, obs[0] - action[1], obs[1] > 1.5)


update = jit(told, compiler_options(0))  # in haste, as for a short run
put = jax.jit(lambda replay, steps: insert(replay, steps, steps.extras["unit_action"]))
draw = jax.jit(sample, static_argnums=2)
log_prob = jax.jit(lambda mean, log_std, u: TanhGaussian(mean, log_std).log_prob(u))


def tanh_gaussian_error(rng: np.random.Generator) -> float:
    """Error of the log-density of one squashed action, from values before squashing of up to 20."""
    d = int(rng.choice([1, 2, 6]))
    u = rng.uniform(-20.0, 20.0, d).astype(np.float32)
    log_std = rng.uniform(-4.0, 2.0, d).astype(np.float32)
    # Half of them are such as the policy would sample, the others anything.
    z = rng.normal(size=d) if rng.random() < 0.5 else rng.uniform(-30, 30, d)
    mean = (u - np.exp(log_std) * z).astype(np.float32)
    got = float(log_prob(mean, log_std, u))
    expected = sac_oracles.tanh_gaussian_log_prob(mean, log_std, u)
    # A sum is known no better than its largest part, whose rounding is what is asked for here.
    parts = ((u.astype(float) - mean) * np.exp(-log_std.astype(float))) ** 2 / 2
    return abs(got - expected) / max(1.0, abs(expected), float(parts.max())) if np.isfinite(got) else np.inf


def small_sac(**changes: Any) -> SAC:
    """SAC with a small network on rollouts of `NUM_STEPS` x `NUM_ENVS`, learning from the first."""
    defaults = {
        "batch_size": 16,
        "replay_size": 29,
        "unroll_length": NUM_STEPS,
        "learning_starts": 0,
        "updates_per_step": 0.25,
        "network": MLP((6, 5), "relu"),
    }
    return SAC(**(defaults | changes))


def random_rollout(rng: np.random.Generator, spec: Spec = SPEC, valid: Any = None, truncation: float = 0.1) -> Rollout:
    """Made-up transitions that follow each other: what comes next is the successor unless an episode ended."""
    shape, size = (NUM_STEPS, spec.num_envs), spec.observation_space.shape
    obs, next_obs = np.empty((2, *shape, *size), np.float32)
    terminated, truncated = rng.random(shape) < 0.2, rng.random(shape) < truncation
    current = rng.normal(0.5, 1.5, (spec.num_envs, *size))
    for t in range(NUM_STEPS):
        obs[t], next_obs[t] = current, rng.normal(0.5, 1.5, current.shape)
        ended = terminated[t] | truncated[t]
        current = np.where(ended[:, None], rng.normal(0.5, 1.5, current.shape), next_obs[t])
    unit_action = rng.uniform(-1, 1, (*shape, *spec.action_space.shape)).astype(np.float32)
    action = np.float32(0.85) + np.float32(1.15) * unit_action  # what the environment gets
    reward = rng.normal(size=shape).astype(np.float32)
    steps = Transition(obs, action, reward, terminated, truncated, next_obs, {"unit_action": unit_action}, valid)
    return Rollout(steps, ())


def random_state(algorithm: SAC, rng: np.random.Generator, rollouts: int = 4, truncation: float = 0.1) -> SACState:
    """Return a state as in the middle of training: nothing is where it started, the replay is full."""
    state = algorithm.init(jax.random.key(0), SPEC)
    learner = state.learner
    start = learner.parameters, learner.target_critics
    # Not further: where a deviation is tiny beside its mean, float32 rounds the sample by a good part of it.
    nudged = jax.device_put(jax.tree.map(lambda x: np.asarray(x) + _normal(rng, x.shape, 0.2), start))
    # Adam's second moments are kept from zero: there its step is a sign, and a sign has no relative error.
    optimizers = Parameters(*(_adam_state(rng, part) for part in nudged[0]))
    observations = jax.tree.map(lambda x: np.asarray(x) + _positive(rng, x.shape), state.observations)
    if observations is not None:
        observations = jax.device_put(observations._replace(count=np.float32(50.0)))
    replay = state.replay
    for _ in range(rollouts):
        steps = random_rollout(rng, truncation=truncation).steps
        steps.truncated[-1] = True  # the next rollout is of other episodes
        replay = put(replay, steps)
    return dataclasses.replace(state, learner=Learner(*nudged, optimizers), observations=observations, replay=replay)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray:
    return rng.normal(scale=scale, size=shape).astype(np.float32)


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.1, 1.0, shape).astype(np.float32)


def _adam_state(rng: np.random.Generator, part: Any) -> optax.ScaleByAdamState:
    mu = jax.tree.map(lambda x: _normal(rng, x.shape, 0.05), part)
    nu = jax.tree.map(lambda x: np.float32(0.1) * _positive(rng, x.shape), part)
    return jax.device_put(optax.ScaleByAdamState(np.int32(rng.integers(1, 30)), mu, nu))


def batches(algorithm: SAC, state: SACState, rollout: Rollout, key: jax.Array, count: int) -> list[tuple[Any, Any]]:
    """Return what each gradient step of an update learns from: rows of the replay, as networks see them, and noise."""
    replay = put(state.replay, rollout.steps)
    stats = expected_statistics(state, rollout)
    result = []
    for i in range(count):
        sample_key, noise_key = jax.random.split(jax.random.fold_in(key, i))
        drawn = jax.tree.map(np.asarray, draw(replay, sample_key, algorithm.batch_size))
        if stats is not None:
            drawn = drawn._replace(obs=_scaled(stats, drawn.obs), next_obs=_scaled(stats, drawn.next_obs))
        result.append((drawn, np.asarray(jax.random.normal(noise_key, (2, *drawn.action.shape)))))
    return result


def expected_statistics(state: SACState, rollout: Rollout) -> oracles.Statistics | None:
    """Return the observation statistics after a rollout: each fresh observation counted once."""
    if state.observations is None:
        return None
    valid = rollout.steps.valid
    fresh = rollout.steps.obs[np.ones(rollout.steps.reward.shape, bool) if valid is None else valid]
    return oracles.Statistics.of(state.observations).after(fresh)


def _scaled(stats: oracles.Statistics, obs: np.ndarray) -> np.ndarray:
    return np.clip((obs - stats.mean) / stats.deviation, -10, 10)


def update_errors(algorithm: SAC, state: SACState, rollout: Rollout, key: jax.Array) -> tuple[dict[str, float], float]:
    """Relative errors of one whole update, and how close it came to a kink."""
    valid = rollout.steps.valid
    count = rollout.steps.reward.size if valid is None else int(valid.sum())
    updates = int(float(state.owed_updates) + count * algorithm.updates_per_step)
    reference = sac_oracles.SACReference(algorithm, state)
    for drawn, noise in batches(algorithm, state, rollout, key, updates):
        reference.step(drawn, noise)
    new, metrics = update(as_arrays(algorithm), state, rollout, key)
    assert (int(metrics["updates"]), int(metrics["fault"])) == (updates, 0)
    rows = reference.metrics
    errors = {name: relative(metrics[name], np.mean([row[name] for row in rows])) for name in rows[0]}
    errors |= _learner_errors(new.learner, new.networks, reference)
    stats = expected_statistics(state, rollout)
    if stats is not None:
        got = new.observations
        pairs = ((got.mean, stats.mean), (got.variance, stats.variance), (got.count, stats.count))
        errors["observations"] = max(relative(*pair) for pair in pairs)
    return errors, reference.margin


def _learner_errors(learner: Learner, networks: Any, reference: sac_oracles.SACReference) -> dict[str, float]:
    parameters, optimizers, names = learner.parameters, learner.optimizers, networks.critic.names
    critics = parameters.critics, optimizers.critics
    log_alpha = (parameters.log_alpha,), sac_oracles.Single(optimizers.log_alpha)
    parts = [
        ("actor", networks.actor.names, parameters.actor, optimizers.actor, reference.actor, ...),
        *((f"critic {i}", names, *critics, reference.critics[i], i) for i in (0, 1)),
        ("log_alpha", ["log_alpha"], *log_alpha, reference.log_alpha, ...),
    ]
    errors = {}
    for i, expected in enumerate(reference.targets):
        got = sac_oracles.by_name(names, learner.target_critics, i)
        errors[f"target {i}"] = max(relative(got[name], expected[name]) for name in names)
    for kind, keys, leaves, optimizer, expected, i in parts:
        got = sac_oracles.by_name(keys, leaves, i)
        errors[kind] = max(relative(got[name], expected.p[name]) for name in keys)
        for moment in ("mu", "nu"):
            got, wanted = sac_oracles.by_name(keys, getattr(optimizer, moment), i), getattr(expected, moment)
            largest = max(0.01, *(np.abs(x).max() for x in wanted.values()))
            errors[f"{kind} {moment}"] = float(max(np.abs(got[name] - wanted[name]).max() for name in keys) / largest)
        assert int(optimizer.count) == expected.count
    return errors


UPDATE_CASES: dict[str, dict[str, Any]] = {
    "learnt temperature": {},
    "fixed temperature": {"automatic_alpha": False, "network": MLP((5,), "tanh")},
    "normalised, with padding": {"normalize_observations": True},
    "short episodes": {"network": MLP((5,), "tanh"), "target_entropy": -0.5},
}


def random_hyperparameters(rng: np.random.Generator) -> dict[str, float]:
    """Numbers that change no compiled program."""
    numbers = {
        "learning_rate": 10 ** rng.uniform(-4, -2),
        "gamma": rng.choice([0.5, 0.99, 1.0]),
        "tau": rng.choice([0.005, 0.3, 1.0]),
        "alpha": rng.choice([0.0, 0.2, 2.0]),
        "updates_per_step": rng.choice([0.25, 0.5]),
    }
    return {name: float(np.float32(x)) for name, x in numbers.items()}


def random_update_errors(case: str, rng: np.random.Generator) -> dict[str, float]:
    """Errors of one random update of a named case.

    Where a ReLU, a bound or the choice of the lower critic comes within rounding of its edge, float32 may follow
    another slope: such an update is drawn again.
    """
    changes = UPDATE_CASES[case]
    while True:
        algorithm = small_sac(**(random_hyperparameters(rng) | changes))
        truncation = 1.0 if case == "short episodes" else 0.1
        state = random_state(algorithm, rng, truncation=truncation)
        valid = rng.random((NUM_STEPS, NUM_ENVS)) < 0.7 if case == "normalised, with padding" else None
        rollout = random_rollout(rng, valid=valid, truncation=truncation)
        if valid is not None and valid.sum() < 4:
            continue
        key = jax.random.key(int(rng.integers(2**31)))
        errors, margin = update_errors(algorithm, state, rollout, key)
        if margin > 1e-5:
            return errors
