"""Playing an episode to look at: a greedy episode of an evaluation, once more, with everything written down."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from ludus.critic import Critic
from ludus.envs.signals import signals_of
from ludus.evaluation import MAX_EPISODE_STEPS, Evaluation, check_match
from ludus.policy import Policy
from ludus.report.episode import SIGNAL, About, Episode
from ludus.rollout import runner
from ludus.seeding import stream
from ludus.spaces import Box, Discrete, MultiDiscrete, Space, flatten, leaves
from ludus.types import split_mask


class Look(NamedTuple):
    """What policy and critic make of an observation, and the memories that they go on with."""

    memory: Any
    critic_memory: Any
    action: Any
    entropy: Any
    value: Any


@jax.jit
def _look(algorithm: Any, policy: Any, critic: Any, memory: Any, critic_memory: Any, obs: Any) -> Look:
    _, distribution = algorithm.decide(policy, memory, obs)
    memory, action, _ = algorithm.act(policy, memory, obs, None, "greedy")
    value = None
    if critic is not None:
        judged = action if algorithm.values_actions else None
        critic_memory, value = algorithm.value(critic, critic_memory, obs, judged)
    return Look(memory, critic_memory, action, distribution.entropy(), value)


def play_episode(
    policy: Policy, env: Any, critic: Critic | None = None, *, seed: int = 0, index: int = 0, about: About | None = None
) -> Episode:
    """Play episode `index` of the evaluation with this seed and return all that happened in it.

    Args:
        policy: plays greedily.
        env: made by `ludus.make_env`; an environment of its own is made from it.
        critic: judges every observation, if there is one.
        seed: of the evaluation, as in `ludus.evaluate`.
        index: the number of the episode: it depends on the seed and on this number alone.
        about: what else is known of the policy, for the file's header.
    """
    check_match(policy, env)
    lane = runner(env).Lane(env, stream(seed, "evaluation"), index)
    memory = policy.initial_memory()
    judge, judge_memory = (None, ()) if critic is None else (critic.state, critic.initial_memory())
    rows: list[tuple[Any, ...]] = []
    try:
        while True:
            obs = jax.tree.map(np.array, lane.obs)
            look = jax.device_get(_look(policy.algorithm, policy.state, judge, memory, judge_memory, obs))
            memory, judge_memory = look.memory, look.critic_memory
            step = lane.step(look.action)
            rows.append((split_mask(obs)[0], look.action, np.array(step.reward), look.entropy, look.value))
            is_cut = len(rows) == MAX_EPISODE_STEPS
            if step.terminated[0] or step.truncated[0] or is_cut:
                final = jax.tree.map(np.array, step.next_obs)
                break
        last = jax.device_get(_look(policy.algorithm, policy.state, judge, memory, judge_memory, final))
    finally:
        lane.close()
    about = replace(
        about or About(env.id),
        env=env.id,
        env_options=dict(env.options),
        seed=seed,
        index=index,
        env_seed=lane.seed,
        gamma=float(policy.algorithm.gamma),
        terminated=bool(step.terminated[0]),
        truncated=bool(step.truncated[0]) or (is_cut and not step.terminated[0]),
    )
    return _episode(about, env.observation_space, env.action_space, rows, (split_mask(final)[0], last.value))


def extremes(evaluation: Evaluation) -> dict[str, int]:
    """Return the numbers of the worst and the best episode of an evaluation; of equals, the first."""
    return {"worst": int(evaluation.returns.argmin()), "best": int(evaluation.returns.argmax())}


def _episode(about: About, obs_space: Space, action_space: Space, rows: list, final: tuple[Any, Any]) -> Episode:
    """Put the rows of one lane together, time first."""
    obs, action, reward, entropy, value = zip(*rows, strict=True)
    observed, taken = _by_leaf("obs", obs_space, obs), _by_leaf("action", action_space, action)
    arrays = {**observed, **taken, "reward": np.concatenate(reward).astype(np.float32)}
    arrays["return"] = np.cumsum(arrays["reward"], dtype=np.float32)  # as an evaluation adds them up
    arrays["entropy"] = np.concatenate(entropy)
    if final[1] is not None:
        arrays["value"], arrays["final_value"] = np.concatenate(value), np.asarray(final[1])
    arrays |= {f"final_{name}": x for name, x in _by_leaf("obs", obs_space, final[:1]).items()}
    low, high, discrete = _bounds(action_space)
    arrays["action_low"], arrays["action_high"] = low, high
    signals = signals_of(about.env, _plain(observed), _plain(taken), about.env_options)
    arrays |= {SIGNAL + name: np.asarray(signal.values, np.float32) for name, signal in signals.items()}
    units = {name: signal.unit for name, signal in signals.items()}
    return Episode(replace(about, units=units, discrete=discrete), arrays)


def _by_leaf(name: str, space: Space, rows: Any) -> dict[str, np.ndarray]:
    """Return the values of a space, each a batch of one, as arrays `[T, ...]` by the names of their leaves."""
    parts = zip(*(flatten(space, row) for row in rows), strict=True)
    named = zip(leaves(space), parts, strict=True)
    return {
        f"{name}/{leaf}" if leaf else name: np.concatenate([np.asarray(x) for x in part]) for (leaf, _), part in named
    }


def _plain(arrays: dict[str, np.ndarray]) -> Any:
    """Return the only array of a plain space; by the names of their leaves, those of others."""
    if len(arrays) == 1 and "/" not in next(iter(arrays)):
        return next(iter(arrays.values()))
    return {name.partition("/")[2]: array for name, array in arrays.items()}


def _bounds(space: Space) -> tuple[np.ndarray, np.ndarray, tuple[bool, ...]]:
    """Return the bounds of every component of an action, and whether it is an integer."""
    low, high, discrete = [], [], []
    for _, leaf in leaves(space):
        if isinstance(leaf, Box):
            below, above = (np.ravel(bound) for bound in leaf.bounds)
        elif isinstance(leaf, Discrete):
            below, above = np.array([leaf.start]), np.array([leaf.start + leaf.n - 1])
        elif isinstance(leaf, MultiDiscrete):
            below = np.ravel(np.broadcast_to(np.asarray(leaf.start), leaf.shape))
            above = below + np.asarray(leaf.sizes) - 1
        else:
            below, above = np.zeros(int(np.prod(leaf.shape))), np.ones(int(np.prod(leaf.shape)))
        low.append(below)
        high.append(above)
        discrete += [not (isinstance(leaf, Box) and leaf.is_float)] * len(below)
    return np.concatenate(low).astype(np.float32), np.concatenate(high).astype(np.float32), tuple(discrete)
