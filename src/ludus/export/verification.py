"""Comparison of an exported policy with the policy itself, in the runtime that will run it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from ludus.algorithms.critic import Critic
from ludus.algorithms.policy import Policy
from ludus.envs.base import AnyEnv
from ludus.export.interface import Arrays, from_inputs, inputs_of, interface_of, memory_from
from ludus.rollout.runner import runner
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete, leaves, map_leaves
from ludus.types import LudusError, RolloutKeys, Tree, split_mask

TOLERANCE = 1e-5
"""The allowed difference of an action, as a share of the largest action where that is above 1."""
STEPS, NUM_ENVS = 32, 8
"""Observations are collected for so many steps in so many environments."""


Runtime = Callable[[Arrays], Arrays]
"""A loaded policy or critic."""


class Observations(NamedTuple):
    """Observations `[steps, envs, ...]` and, in words, their origin."""

    obs: Tree
    origin: str

    def __str__(self) -> str:
        """Return their number and their origin."""
        steps, envs = jax.tree.leaves(self.obs)[0].shape[:2]
        return f"{steps * envs} observations {self.origin}"

    @property
    def is_masked(self) -> bool:
        """Whether the observations have action masks."""
        return split_mask(self.obs)[1] is not None


def played_observations(policy: Policy, env: AnyEnv, seed: int = 0) -> Observations:
    """Collect observations with the exploring policy, in environments of its own."""
    separate = env.remake(NUM_ENVS)
    try:
        keys = RolloutKeys(*(stream(seed, f"export {name}") for name in RolloutKeys._fields))
        carry = runner(separate).start(policy.acting, separate, policy.state, stream(seed, "export"))
        steps = runner(separate).collect(policy.acting, separate, policy.state, carry, keys, STEPS, False)[1].steps
    finally:
        separate.close()
    return Observations(jax.tree.map(np.asarray, steps.obs), f"of {env.id}")


def sampled_observations(policy: Policy, seed: int = 0) -> Observations:
    """Sample observations from their space, for an environment that cannot be stepped."""
    generator = np.random.default_rng(seed)
    obs = map_leaves(lambda leaf: _sample(leaf, generator), policy.spec.observation_space)
    return Observations(obs, "drawn from their space")


def _sample(leaf: Leaf, generator: np.random.Generator) -> np.ndarray:
    shape = (STEPS, NUM_ENVS, *leaf.shape)
    if isinstance(leaf, Box):
        low, high = leaf.bounds
        low, high = np.where(np.abs(low) < 1e6, low, -3.0), np.where(np.abs(high) < 1e6, high, 3.0)
        x = generator.uniform(low, np.maximum(low, high), shape)
        return (x if leaf.is_float else np.round(x)).astype(leaf.dtype)
    sizes = np.asarray(2 if isinstance(leaf, MultiBinary) else leaf.n if isinstance(leaf, Discrete) else leaf.nvec)
    return (generator.integers(sizes, size=shape) + np.asarray(getattr(leaf, "start", 0))).astype(leaf.dtype)


def compare(policy: Policy, runtime: Runtime, seen: Observations) -> float:
    """Return the greatest difference between a policy and its exported form; LudusError if it is too large."""
    worst = 0.0
    for inputs, expected in policy_outputs(policy, seen):
        worst = max(worst, _difference(policy, expected, runtime(inputs)))
        # A batch of one, too: a file that works for one batch size only would fail.
        worst = max(worst, _difference(policy, _first(expected), runtime(_first(inputs))))
    return _checked(worst, "actions", seen)


def compare_critic(policy: Policy, critic: Critic, runtime: Runtime, seen: Observations) -> float:
    """Do the same for a critic; SAC's values the policy's actions, and a recurrent one gets the policy's memory."""
    judge, worst = _values_of(critic), 0.0
    for inputs, expected in policy_outputs(policy, seen):
        if critic.algorithm.values_actions:
            inputs = inputs | {"action": expected["action"]}
        value = jax.device_get(judge(inputs)["value"])
        worst = max(worst, _relative_difference(value, runtime(inputs)["value"]))
        worst = max(worst, _relative_difference(value[:1], runtime(_first(inputs))["value"]))
    return _checked(worst, "values", seen)


def _values_of(critic: Critic) -> Runtime:
    one_memory = critic.initial_memory(1)

    @jax.jit
    def judge(inputs: Arrays) -> Arrays:
        obs, memory = from_inputs(critic, one_memory, inputs)
        return {"value": critic.acting.value(critic.state, memory, obs, inputs.get("action"))[1]}

    return judge


def policy_outputs(policy: Policy, seen: Observations) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield inputs and the policy's outputs: all at once or, if it has a memory, step by step."""
    act = jax.jit(interface_of(policy, seen.is_masked).act)
    steps, envs = jax.tree.leaves(seen.obs)[0].shape[:2]
    memory = policy.initial_memory(envs)
    if not jax.tree.leaves(memory):
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), seen.obs)  # [steps, envs] -> [n]
        inputs = inputs_of(policy, flat, memory)
        yield inputs, jax.device_get(act(inputs))
        return
    for t in range(steps):
        inputs = jax.device_get(inputs_of(policy, jax.tree.map(lambda x, t=t: x[t], seen.obs), memory))
        expected = jax.device_get(act(inputs))
        memory = memory_from(memory, expected, "next_")
        yield inputs, expected


def _first(arrays: Arrays) -> Arrays:
    return {name: np.asarray(x)[:1] for name, x in arrays.items()}


def _checked(worst: float, what: str, seen: Observations) -> float:
    if not worst <= TOLERANCE:
        raise LudusError(
            f"export: {what} differ by {worst:.2e} on {seen}, and {TOLERANCE:.0e} is allowed; nothing was written"
        )
    return worst


def _difference(policy: Policy, expected: Arrays, got: Arrays) -> float:
    """Return the greatest difference of any output; discrete actions must be equal, except in a tie."""
    worst = 0.0
    for name, wanted in expected.items():
        if name not in got or np.shape(got[name]) != np.shape(wanted):
            return np.inf
        if np.issubdtype(wanted.dtype, np.floating):
            worst = max(worst, _relative_difference(wanted, got[name]))
    for name, leaf in leaves(policy.spec.action_space):
        action, logits = (f"{prefix}/{name}" if name else prefix for prefix in ("action", "logits"))
        if not isinstance(leaf, Box) and not np.array_equal(expected[action], got[action]):
            worst = max(worst, _logit_gap(leaf, expected[logits], expected[action], np.asarray(got[action])))
    return worst


def _relative_difference(wanted: np.ndarray, got: np.ndarray) -> float:
    """Return the greatest difference where the policy's output is finite; logits of forbidden actions are not."""
    is_finite = np.isfinite(wanted)
    wanted, got = wanted[is_finite], np.asarray(got)[is_finite]
    if not wanted.size:
        return 0.0
    gap = np.abs(wanted - got).max()
    return float(gap / max(1.0, np.abs(wanted).max())) if np.isfinite(gap) else np.inf


def _logit_gap(leaf: Leaf, logits: np.ndarray, wanted: np.ndarray, got: np.ndarray) -> float:
    """Return by how much the logits of the policy's choice exceed those of the other; rounding may decide a tie."""
    if isinstance(leaf, MultiBinary):
        return float(np.abs(logits[wanted.reshape(logits.shape) != got.reshape(logits.shape)]).max())
    assert isinstance(leaf, Discrete | MultiDiscrete)
    start = np.asarray(leaf.start)
    columns = [(action - start).reshape(*logits.shape[:-1], 1).astype(int) for action in (wanted, got)]
    if columns[1].min() < 0 or columns[1].max() >= logits.shape[-1]:
        return np.inf
    best, other = (np.take_along_axis(logits, column, axis=-1) for column in columns)
    return float((best - other).max())
