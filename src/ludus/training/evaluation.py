"""Evaluation: episodes on separate, seeded environments. Training state and statistics are never touched."""

from dataclasses import dataclass, field
from itertools import zip_longest
from numbers import Integral
from typing import Literal

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.critic import Critic
from ludus.algorithms.hyperparameters import at_end
from ludus.algorithms.policy import Policy
from ludus.envs.base import AnyEnv
from ludus.rollout.runner import runner
from ludus.runs.statistics import mean_interval, share_interval
from ludus.runtime.rng import stream
from ludus.spaces import FeatureGroup, Space, leaves
from ludus.types import MAX_EPISODE_STEPS, Branching, Lookahead, LudusError, Match, Mode, Tree

LOOKAHEAD_DEPTH = 10
"""Steps of a rollout by which an action is judged."""


@dataclass(frozen=True)
class Evaluation:
    """The results of one evaluation's episodes."""

    returns: np.ndarray
    lengths: np.ndarray
    info: dict[str, np.ndarray] = field(default_factory=dict)
    """For each number in the environment's `info`, by its journal name: one for each episode, NaN if it gave none."""
    num_cut: int = 0
    """How many of the episodes had not ended by themselves when they were cut."""
    asked: int | None = None
    """How many episodes were asked for, where time was too short for all of them."""

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
            **({"episodes_cut": self.num_cut} if self.num_cut else {}),
            **{name: float(values.mean(dtype=np.float64)) for name, values in given.items() if len(values)},
        }

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return 95% intervals of the means in `summary`, by name; none from a single episode."""
        return {name: made for name, values in self._series().items() if (made := _interval(values))}

    def _series(self) -> dict[str, np.ndarray]:
        return {"mean_return": self.returns, "mean_length": self.lengths, **self.info}

    def __str__(self) -> str:
        """One line for people."""
        s = self.summary()
        of = f" of {self.asked}, for more there was no time" if self.asked else ""
        cut = f", {self.num_cut} of them cut at {self.lengths.max()} steps" if self.num_cut else ""
        return (
            f"return {s['mean_return']:.2f} ± {s['std_return']:.2f} (min {s['min_return']:.2f}, "
            f"max {s['max_return']:.2f}), length {s['mean_length']:.1f}, {s['episodes']} episodes{of}{cut}"
        )


def _interval(values: np.ndarray) -> tuple[float, float] | None:
    values = values[~np.isnan(values)].astype(np.float64)
    if len(values) < 2:
        return None
    mean = values.mean()
    if np.isin(values, (0.0, 1.0)).all():
        return share_interval(float(mean), len(values))
    low, high = mean_interval(mean, values.std(ddof=1), np.array(len(values)))
    return float(low), float(high)


def evaluate(  # noqa: PLR0913  each is a matter of its own
    policy: Policy,
    env: AnyEnv,
    episodes: int | Literal["all"] = 100,
    seed: int = 0,
    *,
    deterministic: bool = True,
    max_steps: int = MAX_EPISODE_STEPS,
    lookahead: int | None = None,
    lookahead_depth: int = LOOKAHEAD_DEPTH,
    critic: Critic | None = None,
) -> Evaluation:
    """Play episodes and return what they came to: greedy ones, or with sampled actions if not `deterministic`.

    Each is cut after `max_steps`. Where episodes are drawn from scenarios, episode `i` is in scenario `i` of the
    evaluation set, and `episodes="all"` is as many as it has.

    With `lookahead`, the policy plays so many rollouts of `lookahead_depth` steps from every action of a small Discrete
    space, or from so many samples and its greedy one, before each step, and takes the action whose rollouts earn most;
    the `critic` says what comes after them. Environments that cannot be cloned are refused.

    The same policy, environment, number and seed give the same answer. Episode `i` starts alike however many
    environments run side by side; its numbers may differ in the last bits, since a batch of another size is rounded
    differently.
    """
    check_match(policy, env)
    if episodes == "all":
        if env.num_held_out is None:
            raise LudusError(f"episodes=all: {env.id} has no evaluation set of scenarios; give a number")
        episodes = env.num_held_out
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if not isinstance(value, Integral) or value < 1:
            raise LudusError(f"{name}={value}: must be an integer of at least 1")
    if not isinstance(seed, Integral) or seed < 0:
        raise LudusError(f"seed={seed}: must be an integer of at least 0")
    mode: Mode = "greedy" if deterministic else "sample"
    looks = None if lookahead is None else _lookahead(policy, env, lookahead, lookahead_depth, critic, deterministic)
    match = Match(int(episodes), int(max_steps), mode=mode, lookahead=looks)
    return evaluate_state(policy.algorithm, policy.state, env, stream(seed, "evaluation"), match)


def _lookahead(
    policy: Policy, env: AnyEnv, count: int, depth: int, critic: Critic | None, deterministic: bool
) -> Lookahead:
    """Return how to look ahead; refuse what cannot be done."""
    for name, value in (("lookahead", count), ("lookahead_depth", depth)):
        if not isinstance(value, Integral) or value < 1:
            raise LudusError(f"{name}={value}: must be an integer of at least 1")
    if not deterministic:
        raise LudusError(f"lookahead={count}: takes the best action, and samples none; leave one of both out")
    gamma = policy.acting.discount()
    gamma, state = np.float32(1.0 if gamma is None else gamma), None if critic is None else critic.state
    runner(env).check_branching(env, Branching(int(count), int(depth), gamma))
    return Lookahead(int(count), int(depth), state, gamma)


def check_match(policy: Policy, env: AnyEnv) -> None:
    """Refuse a policy that was made for other spaces than the environment has."""
    if not isinstance(policy, Policy):
        raise LudusError(f"policy={policy!r}: must be a ludus.Policy, as load_policy returns it")
    if not hasattr(env, "remake"):
        raise LudusError(f"env={env!r}: must be made by ludus.make_env")
    for name in ("observation_space", "action_space"):
        own, known = getattr(env, name), getattr(policy.spec, name)
        if own != known:
            words = name.replace("_", " ")
            if str(own) == str(known):
                one, other = _first_difference(own, known)
                raise LudusError(f"{env.id}: its {words} has {one}, the policy's {other}")
            raise LudusError(f"{env.id}: its {words} {own} is not the policy's {known}")


def _first_difference(space: Space, other: Space) -> tuple[str, str]:
    """Return the first feature group of each that is not alike; spaces say nothing of them when they are printed."""
    groups = [[group for _, leaf in leaves(each) for group in getattr(leaf, "groups", ())] for each in (space, other)]
    for one, two in zip_longest(*groups):
        if one != two:
            return _told(one), _told(two)
    return str(space), str(other)


def _told(group: FeatureGroup | None) -> str:
    return "no feature groups" if group is None else f"{group.name} {list(group.shape)}"


def evaluate_state(algorithm: Algorithm, policy: Tree, env: AnyEnv, key: jax.Array, match: Match) -> Evaluation:
    """Evaluate a policy that is not wrapped in a `Policy` yet.

    Where `match.watch` ends it, what is returned are the episodes of the batches that were whole by then: of those
    that were still running, the short ones would have ended first.
    """
    returns, lengths, info, is_cut = runner(env).play(at_end(algorithm), env, policy, key, match)
    asked = match.episodes if len(returns) < match.episodes else None
    return Evaluation(returns, lengths, info, int(is_cut.sum()), asked)
