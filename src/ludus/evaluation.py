"""Evaluation: episodes on separate, seeded environments. Training state and statistics are never touched."""

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import jax
import numpy as np

from ludus.policy import Policy
from ludus.rollout import runner
from ludus.seeding import stream
from ludus.types import LudusError, Mode

MAX_EPISODE_STEPS = 100_000
"""An episode that never ends by itself is cut here, so that an evaluation always ends."""


@dataclass(frozen=True)
class Evaluation:
    """What the episodes of one evaluation came to."""

    returns: np.ndarray
    lengths: np.ndarray
    info: dict[str, np.ndarray] = field(default_factory=dict)
    """For each number in the environment's `info`, by its journal name: one for each episode, NaN if it gave none."""

    def summary(self) -> dict[str, float]:
        """Mean, spread and extremes, under the names that the journal and the command line use."""
        given = {name: values[~np.isnan(values)] for name, values in self.info.items()}
        return {
            "mean_return": float(self.returns.mean(dtype=np.float64)),
            "std_return": float(self.returns.std(dtype=np.float64)),
            "min_return": float(self.returns.min()),
            "max_return": float(self.returns.max()),
            "mean_length": float(self.lengths.mean(dtype=np.float64)),
            "episodes": len(self.returns),
            **{name: float(values.mean(dtype=np.float64)) for name, values in given.items() if len(values)},
        }

    def __str__(self) -> str:
        """One line for people."""
        s = self.summary()
        return (
            f"return {s['mean_return']:.2f} ± {s['std_return']:.2f} (min {s['min_return']:.2f}, "
            f"max {s['max_return']:.2f}), length {s['mean_length']:.1f}, {s['episodes']} episodes"
        )


def evaluate(policy: Policy, env: Any, episodes: int = 100, seed: int = 0, *, deterministic: bool = True) -> Evaluation:
    """Play episodes and return what they came to: greedy ones, or with sampled actions if not `deterministic`.

    The same policy, environment, number and seed give the same answer. Episode `i` starts alike however many
    environments run side by side; its numbers may differ in the last bits, since a batch of another size is rounded
    differently.
    """
    check_match(policy, env)
    if not isinstance(episodes, Integral) or episodes < 1:
        raise LudusError(f"episodes={episodes}: must be an integer of at least 1")
    if not isinstance(seed, Integral) or seed < 0:
        raise LudusError(f"seed={seed}: must be an integer of at least 0")
    mode: Mode = "greedy" if deterministic else "sample"
    return evaluate_state(policy.algorithm, policy.state, env, stream(seed, "evaluation"), episodes, mode=mode)


def check_match(policy: Policy, env: Any) -> None:
    """Refuse a policy that was made for other spaces than the environment has."""
    if not isinstance(policy, Policy):
        raise LudusError(f"policy={policy!r}: must be a ludus.Policy, as load_policy returns it")
    if not hasattr(env, "remake"):
        raise LudusError(f"env={env!r}: must be made by ludus.make_env")
    for name in ("observation_space", "action_space"):
        if getattr(env, name) != getattr(policy.spec, name):
            raise LudusError(
                f"{env.id}: its {name.replace('_', ' ')} {getattr(env, name)} is not the policy's "
                f"{getattr(policy.spec, name)}"
            )


def evaluate_state(
    algorithm: Any,
    policy: Any,
    env: Any,
    key: jax.Array,
    episodes: int,
    lanes: int | None = None,
    mode: Mode = "greedy",
) -> Evaluation:
    """Evaluate a policy that is not wrapped in a `Policy` yet; `lanes` sizes the compiled program."""
    return Evaluation(*runner(env).play(algorithm, env, policy, key, episodes, MAX_EPISODE_STEPS, lanes, mode))
