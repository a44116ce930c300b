"""Random cases for the oracles, and how far `ludus` is from them: shared by the tests and benchmarks/correctness.py."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
from oracles import flat

from ludus.algorithms.advantages import generalized_advantages
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.minibatch import minibatch_indices
from ludus.algorithms.normalize import RunningStatistics
from ludus.algorithms.ppo import PPO, PPOState
from ludus.algorithms.ppo_state import Penalty
from ludus.envs.base import Environment
from ludus.envs.batch import JaxEnv
from ludus.networks.builders import GRU, MLP
from ludus.networks.distributions import Categorical, Gaussian
from ludus.rollout import compiled
from ludus.runtime.compilation import compiler_options, jit
from ludus.spaces import Box, Discrete, Space
from ludus.types import Rollout, RolloutKeys, Spec, Step, Transition

NUM_ENVS, NUM_STEPS = 4, 8
OBSERVATION_SPACE = Box(-10.0, 10.0, (3,))
DISCRETE = Spec(OBSERVATION_SPACE, Discrete(3), NUM_ENVS)
CONTINUOUS = Spec(OBSERVATION_SPACE, Box(-1.0, 1.0, (2,)), NUM_ENVS)

advantages = jax.jit(generalized_advantages)


def told(algorithm: Any, state: Any, rollout: Rollout, key: jax.Array) -> tuple[Any, dict[str, Any]]:
    """Return the state after an update, and everything else that it says by name."""
    made = algorithm.update(state, rollout, key)
    return made.state, {**made.metrics, "updates": made.updates, "fault": made.fault, "gradient": made.gradient}


update = jit(told, compiler_options(0))  # in haste, as for a short run


def relative(got: Any, expected: Any) -> float:
    """Largest error over 0.1 + |expected|: a bound of 1e-5 on it is 1e-5 relative, or 1e-6 absolute near zero."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if not np.isfinite(got).all():
        return np.inf
    return float(np.max(np.abs(got - expected) / (0.1 + np.abs(expected))))


# Advantages


def episode_ends(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Terminations and truncations, from none to every step, sometimes both at once."""
    return tuple(rng.random(shape) < rng.choice([0.0, 0.1, 0.5, 1.0]) for _ in range(2))


def advantage_error(rng: np.random.Generator) -> float:
    """Largest error of the advantages of one random rollout."""
    shape = (int(rng.choice([1, 6, 24])), NUM_ENVS)
    reward, value, next_value = rng.normal(size=(3, *shape)).astype(np.float32)
    inputs = reward, value, next_value, *episode_ends(rng, shape)
    gamma, lam = float(rng.choice([0.0, 0.5, 0.99, 1.0])), float(rng.choice([0.0, 0.5, 0.95, 1.0]))
    return float(np.abs(np.asarray(advantages(*inputs, gamma, lam)) - oracles.advantages(*inputs, gamma, lam)).max())


# Distributions


@jax.jit
def _log_prob_entropy_kl(distribution: Any, other: Any, action: Any) -> tuple[Any, Any, Any]:
    return distribution.log_prob(action), distribution.entropy(), distribution.kl(other)


def categorical_error(rng: np.random.Generator) -> float:
    """Largest error of log-probability, entropy and KL of two random categoricals, some actions forbidden to both."""
    n = int(rng.choice([2, 3, 7, 18]))
    logits, other = (rng.normal(size=(2, n)) * rng.choice([0.01, 1.0, 10.0])).astype(np.float32)
    allowed = rng.random(n) < rng.choice([0.5, 1.0])
    action = rng.integers(n)
    allowed[action] = True
    logits, other = np.where(allowed, logits, -np.inf), np.where(allowed, other, -np.inf)
    got = _log_prob_entropy_kl(Categorical(logits), Categorical(other), np.int32(action))
    expected = (
        oracles.categorical_log_probabilities(logits)[action],
        oracles.categorical_entropy(logits),
        oracles.categorical_kl(logits, other),
    )
    return _error_from_one(got, expected)


def gaussian_error(rng: np.random.Generator) -> float:
    """Largest error of log-probability, entropy and KL of two random normals, for actions up to 20 away from zero."""
    d = int(rng.choice([1, 2, 6]))
    mean, other_mean = rng.normal(size=(2, d)).astype(np.float32)
    log_std, other_log_std = rng.uniform(-4.0, 2.0, (2, d)).astype(np.float32)
    action = rng.uniform(-20.0, 20.0, d).astype(np.float32)
    got = _log_prob_entropy_kl(Gaussian(mean, log_std), Gaussian(other_mean, other_log_std), action)
    expected = (
        oracles.gaussian_log_prob(mean, log_std, action),
        oracles.gaussian_entropy(log_std),
        oracles.gaussian_kl(mean, log_std, other_mean, other_log_std),
    )
    return _error_from_one(got, expected)


def _error_from_one(got: Any, expected: Any) -> float:
    """Relative error of numbers that may cross zero, where nothing is known better than to the rounding of 1."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected)
    return (
        float(np.max(np.abs(got - expected) / np.maximum(1.0, np.abs(expected)))) if np.isfinite(got).all() else np.inf
    )


# Updates


def small_ppo(**changes: Any) -> PPO:
    """PPO with a small network on `NUM_STEPS` x `NUM_ENVS` transitions, in one minibatch unless told otherwise."""
    rows = NUM_STEPS * NUM_ENVS
    defaults = {
        "normalize_returns": False,
        "batch_size": rows,
        "minibatch_size": rows,
        "epochs_per_update": 1,
        "network": MLP((5,)),
    }
    return PPO(**(defaults | changes))


def random_state(algorithm: PPO, spec: Spec, rng: np.random.Generator, seen: bool = True) -> PPOState:
    """Return a state as in the middle of training: every parameter away from its start, statistics not empty."""
    state = algorithm.init(jax.random.key(0), spec)
    noise = rng.normal(scale=0.3, size=state.network.size).astype(np.float32)
    moved = flat(state.parameters).astype(np.float32) + noise
    state = dataclasses.replace(state, parameters=state.network.unravel(jnp.asarray(moved)))
    if not seen:
        return state

    def some(stats: RunningStatistics | None) -> RunningStatistics | None:
        if stats is None:
            return None
        mean, variance = rng.normal(size=stats.mean.shape), rng.uniform(0.5, 2.0, stats.mean.shape)
        return RunningStatistics(*(jnp.asarray(x, jnp.float32) for x in (mean, variance, 100.0)))

    statistics = {name: some(getattr(state, name)) for name in ("observations", "returns", "rewards")}
    discounted = jnp.asarray(rng.normal(size=spec.num_envs), jnp.float32)
    memory, penalty = random_memory(state.critic_memory, rng), random_penalty(state, rng)
    return dataclasses.replace(state, discounted=discounted, critic_memory=memory, penalty=penalty, **statistics)


def random_memory(memory: Any, rng: np.random.Generator) -> Any:
    """Return a GRU's memory as in the midst of an episode."""
    return jax.tree.map(lambda x: jnp.tanh(jnp.asarray(rng.normal(size=x.shape), jnp.float32)), memory)


def random_penalty(state: PPOState, rng: np.random.Generator) -> Penalty | None:
    """Return a penalty whose reference is another policy than the present one, and whose coefficient has adapted."""
    held = state.penalty
    if held is None:
        return None
    coefficient = jax.tree.map(lambda x: jnp.float32(rng.uniform(0.1, 3.0)), held.coefficient)
    reference = held.reference
    if reference is not None:
        noise = rng.normal(scale=0.2, size=state.network.size).astype(np.float32)
        parameters = state.network.unravel(jnp.asarray(flat(state.parameters).astype(np.float32) + noise))
        reference = dataclasses.replace(reference, parameters=parameters)
    return Penalty(coefficient, reference, random_memory(held.memory, rng))


def random_rollout(
    state: PPOState, rng: np.random.Generator, steps: int = NUM_STEPS, valid: Any = None, spread: float = 0.4
) -> Rollout:
    """Made-up transitions, whose old log-probabilities lie up to `spread` from those of the present policy."""
    spec, shape = state.network.spec, (steps, state.network.spec.num_envs)
    obs, next_obs = rng.normal(0.5, 1.5, (2, *shape, *spec.observation_space.shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    model, theta = oracles.Model(state.network), flat(state.parameters)
    memory = np.tanh(rng.normal(size=(shape[1], _memory_size(state)))).astype(np.float32) if model.has_memory else ()
    stats = state.observations and oracles.Statistics.of(state.observations)
    seen = np.clip((obs - stats.mean) / stats.deviation, -10, 10) if stats else obs.astype(np.float64)
    features, _ = model.through_time(theta, np.asarray(memory, np.float64), seen, terminated | truncated)
    policy, log_std, _ = model.outputs(theta, features)
    if log_std is None:
        sample = rng.integers(spec.action_space.n, size=shape).astype(np.int32)
        log_prob = np.take_along_axis(oracles.categorical_log_probabilities(policy), sample[..., None], -1)[..., 0]
    else:
        sample = (policy + np.exp(log_std) * rng.normal(size=policy.shape)).astype(np.float32)
        log_prob = oracles.gaussian_log_prob(policy, log_std, sample)
    old_log_prob = (log_prob + rng.uniform(-spread, spread, shape)).astype(np.float32)
    reward = rng.normal(size=shape).astype(np.float32)
    extras = {"sample": sample, "log_prob": old_log_prob}
    transitions = Transition(obs, sample, reward, terminated, truncated, next_obs, extras, valid)
    return Rollout(transitions, memory, jnp.float32(rng.uniform(0.0, 0.9)))


def _memory_size(state: PPOState) -> int:
    return state.network.build.memory_size


def minibatch_weights(algorithm: PPO, rollout: Rollout, key: jax.Array) -> list[np.ndarray]:
    """Return the minibatches of an update as weights `[T, B]`, in order, leaving out those of padding alone."""
    shape, valid = rollout.steps.reward.shape, rollout.steps.valid
    valid = np.ones(shape, bool) if valid is None else np.asarray(valid)
    if isinstance(algorithm.network, GRU):
        rows, size = shape[1], algorithm.minibatch_size // shape[0]
    else:
        rows, size = valid.size, algorithm.minibatch_size
    has_data = None if rollout.steps.valid is None else (valid.any(axis=0) if rows == shape[1] else valid.ravel())
    result = []
    for index in np.asarray(minibatch_indices(key, rows, size, algorithm.epochs_per_update, has_data)):
        chosen = np.isin(np.arange(rows), index)
        chosen = np.broadcast_to(chosen, shape) if rows == shape[1] else chosen.reshape(shape)
        if (chosen & valid).any():
            result.append((chosen & valid).astype(np.float64))
    return result


def update_errors(algorithm: PPO, state: PPOState, rollout: Rollout, key: jax.Array) -> dict[str, float]:
    """Relative errors of one whole update: Adam's moments, parameters, statistics, metrics."""
    return errors_against(expected_update(algorithm, state, rollout, key), algorithm, state, rollout, key)


def expected_update(algorithm: PPO, state: PPOState, rollout: Rollout, key: jax.Array) -> oracles.Update:
    """Return what the reference makes of an update."""
    return oracles.PPOReference(algorithm, state, rollout).update(minibatch_weights(algorithm, rollout, key))


def errors_against(
    expected: oracles.Update, algorithm: PPO, state: PPOState, rollout: Rollout, key: jax.Array
) -> dict[str, float]:
    """Compare an update with what the reference made of it."""
    new, metrics = update(as_arrays(algorithm), state, rollout, key)
    errors = {name: relative(metrics[name], value) for name, value in expected.metrics.items()}
    errors["mu"] = float(np.abs(new.optimizer.mu - expected.mu).max() / np.abs(expected.mu).max())
    errors["nu"] = float(np.abs(new.optimizer.nu - expected.nu).max() / np.abs(expected.nu).max())
    errors["parameters"] = relative(flat(new.parameters), expected.parameters)
    errors["discounted"] = relative(new.discounted, expected.discounted)
    for name in ("observations", "returns", "rewards"):
        got, reference = getattr(new, name), getattr(expected, name)
        assert (got is None) == (reference is None)
        if got is not None:
            parts = ((got.mean, reference.mean), (got.variance, reference.variance), (got.count, reference.count))
            errors[name] = max(relative(*pair) for pair in parts)
    if algorithm.kl_target is not None:
        errors["coefficient"] = relative(new.penalty.coefficient, expected.coefficient)
    if expected.reference_memory is not None:
        errors["reference_memory"] = relative(new.penalty.memory, expected.reference_memory)
    return errors


NORMALIZED = {"normalize_observations": True, "normalize_rewards": True, "normalize_returns": True}
VALUE_CLIPPING = {"value_clip_epsilon": 0.002}
SEVERAL = {"epochs_per_update": 2, "minibatch_size": 8}
RECURRENT = {"network": GRU(4, (5,)), "epochs_per_update": 2, "minibatch_size": 16, "accumulation_steps": 2}
UPDATE_CASES: dict[str, tuple[Spec, dict[str, Any]]] = {
    "discrete": (DISCRETE, {}),
    "continuous": (CONTINUOUS, {}),
    "discrete, normalised": (DISCRETE, NORMALIZED | VALUE_CLIPPING),
    "discrete, several minibatches": (DISCRETE, SEVERAL),
    "discrete, several minibatches, value clipping": (DISCRETE, NORMALIZED | VALUE_CLIPPING | SEVERAL),
    "continuous, normalised, several minibatches": (CONTINUOUS, NORMALIZED | SEVERAL),
    "recurrent": (DISCRETE, RECURRENT),
    "penalised": (DISCRETE, {"kl_coef": 0.7} | SEVERAL),
    "penalised, adaptive": (CONTINUOUS, {"kl_target": 0.02} | NORMALIZED | SEVERAL),
    "penalised, from the start": (CONTINUOUS, {"kl_coef": 0.3, "kl_reference": "start"} | NORMALIZED | SEVERAL),
    "penalised, from the start, recurrent": (
        DISCRETE,
        {"kl_target": 0.02, "kl_reference": "start", "kl_coef": 0.5} | RECURRENT,
    ),
    "recurrent, shared": (DISCRETE, RECURRENT | {"network": GRU(4, (5,), shared=True)}),
}


def random_hyperparameters(rng: np.random.Generator) -> dict[str, float]:
    """Numbers that change no compiled program."""
    return {
        "learning_rate": 10 ** rng.uniform(-4, -2),
        "gamma": rng.choice([0.5, 0.99, 1.0]),
        "gae_lambda": rng.choice([0.0, 0.95, 1.0]),
        "clip_epsilon": rng.uniform(0.1, 0.3),
        "entropy_coef": rng.uniform(0.0, 0.05),
        "value_coef": rng.uniform(0.1, 1.0),
        "max_grad_norm": rng.choice([0.1, 0.5, 100.0]),
    }


def random_update_errors(case: str, rng: np.random.Generator) -> dict[str, float]:
    """Errors of one random update of a named case.

    Where a sample comes within rounding of the edge of a clip, the loss has two slopes and float32 may follow the
    other one: such an update is drawn again.
    """
    spec, changes = UPDATE_CASES[case]
    while True:
        numbers = {name: float(np.float32(x)) for name, x in random_hyperparameters(rng).items()}
        algorithm = small_ppo(**(numbers | changes))
        state = random_state(algorithm, spec, rng, seen=bool(rng.random() < 0.7))
        inputs = algorithm, state, random_rollout(state, rng), jax.random.key(int(rng.integers(2**31)))
        expected = expected_update(*inputs)
        if expected.margin > 1e-5:
            return errors_against(expected, *inputs)


# Ratios


@dataclass(frozen=True)
class Wander(Environment):
    """Drifts at random and ends now and then; it shows and takes what `DISCRETE` or `CONTINUOUS` say."""

    is_discrete: bool
    observation_space = OBSERVATION_SPACE

    @property
    def action_space(self) -> Space:
        """Either of the two."""
        return (DISCRETE if self.is_discrete else CONTINUOUS).action_space

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start anywhere."""
        obs = jax.random.normal(key, (3,))
        return obs, obs

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        """Drift, pushed a little by the action."""
        obs = 0.5 * state + jax.random.normal(key, (3,)) + 0.1 * jnp.sum(action)
        return obs, Step(obs, obs[0], obs[1] > 1.0)


begin = jit(compiled.begin, compiler_options(0), static=("env",))
collect = jit(compiled.collect, compiler_options(0), static=("env", "num_steps", "threshold"))


def collected(algorithm: PPO, state: PPOState, seed: int = 0) -> Rollout:
    """Return the second rollout of a policy, so that it begins in the middle of episodes."""
    env = JaxEnv(Wander(state.network.spec == DISCRETE), NUM_ENVS, "wander", max_episode_steps=5)
    algorithm, policy = as_arrays(algorithm), algorithm.policy(state)
    first, *keys = jax.random.split(jax.random.key(seed), 9)
    carry = begin(algorithm, env, policy, first)
    for four in (keys[:4], keys[4:]):
        carry, rollout, _ = collect(algorithm, env, policy, carry, RolloutKeys(*four), NUM_STEPS, False)
    assert (rollout.steps.terminated | rollout.steps.truncated).any()
    return rollout


RATIO_CASES = ("discrete, several minibatches", "continuous, normalised, several minibatches", "recurrent")


def ratio_error(case: str, rng: np.random.Generator) -> float:
    """Return how far ratios are from 1 as long as no parameter moves; infinite if any is further than 1e-6.

    In units of the largest log-probability if that is beyond 1: float32 knows -5 no better than to 5e-7.

    A step size of 0 keeps parameters where they are. Then `clip_fraction` counts the ratios beyond the clip, and
    `approx_kl` is the mean of half the squared deviation.
    """
    spec, changes = UPDATE_CASES[case]
    algorithm = small_ppo(**changes, learning_rate=0.0)
    state = random_state(algorithm, spec, rng)
    rollout = collected(algorithm, state, int(rng.integers(2**31)))
    unit = max(1.0, float(np.abs(rollout.steps.extras["log_prob"]).max()))
    algorithm = dataclasses.replace(algorithm, clip_epsilon=1e-6 * unit)
    _, metrics = update(as_arrays(algorithm), state, rollout, jax.random.key(0))
    return float(np.sqrt(2 * metrics["approx_kl"])) / unit if metrics["clip_fraction"] == 0 else np.inf
