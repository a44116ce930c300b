"""Playing an episode to look at: a greedy episode of an evaluation, once more, with everything written down."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ludus.algorithms.critic import Critic
from ludus.algorithms.policy import Policy
from ludus.envs.base import AnyEnv
from ludus.envs.signals import signals_of
from ludus.rollout.episodes import Enough, Watched
from ludus.rollout.runner import runner
from ludus.runs.episode_file import SIGNAL, About, Episode
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete, MultiDiscrete, Space, flatten, leaves
from ludus.training.evaluation import MAX_EPISODE_STEPS, Evaluation, check_match
from ludus.types import Tree


def look(parts: Tree, memory: Tree, obs: Tree) -> tuple[Tree, Tree, dict[str, Any]]:
    """Return what policy and critic make of an observation, and the memories that they go on with."""
    algorithm, policy, critic = parts
    own, judge = memory
    _, distribution = algorithm.distribution(policy, own, obs)
    own, action, _ = algorithm.act(policy, own, obs, None, "greedy")
    figures = {} if distribution is None else {"entropy": distribution.entropy()}
    if critic is not None:
        judged = action if algorithm.values_actions else None
        judge, figures["value"] = algorithm.value(critic, judge, obs, judged)
    return (own, judge), action, figures


def lookers(policy: Policy, critic: Critic | None) -> tuple[Tree, Tree]:
    """Return what `look` looks with, and its memory at an episode's start."""
    parts = policy.acting, policy.state, None if critic is None else critic.state
    return parts, (policy.initial_memory(), () if critic is None else critic.initial_memory())


def play_episode(
    policy: Policy,
    env: AnyEnv,
    critic: Critic | None = None,
    *,
    seed: int = 0,
    index: int = 0,
    about: About | None = None,
    most: int = MAX_EPISODE_STEPS,
    enough: Enough = lambda: False,
) -> Episode:
    """Play episode `index` of the evaluation with this seed and return all that happened in it.

    Args:
        policy: plays greedily.
        env: made by `ludus.make_env`; an environment of its own is made from it.
        critic: judges every observation, if there is one.
        seed: of the evaluation, as in `ludus.evaluate`.
        index: the number of the episode: it depends on the seed and on this number alone.
        about: what else is known of the policy, for the file's header.
        most: steps after which the episode is cut, which counts as truncated.
        enough: asked now and then whether to cut it earlier.
    """
    check_match(policy, env)
    parts, memory = lookers(policy, critic)
    watched = runner(env).watch(look, parts, memory, env, stream(seed, "evaluation"), index, most, enough)
    about = replace(
        about or About(env.id),
        env=env.id,
        env_options=dict(env.options),
        seed=seed,
        index=index,
        env_seed=watched.seed,
        gamma=policy.acting.discount(),
        terminated=watched.terminated,
        truncated=watched.truncated or not watched.terminated,
    )
    return _episode(about, env, watched)


def extremes(evaluation: Evaluation) -> dict[str, int]:
    """Return the numbers of the worst and the best episode of an evaluation; of equals, the first."""
    return {"worst": int(evaluation.returns.argmin()), "best": int(evaluation.returns.argmax())}


def _episode(about: About, env: AnyEnv, watched: Watched) -> Episode:
    """Put what was watched in one lane together."""
    obs_space, action_space = env.observation_space, env.action_space
    observed, taken = _by_leaf("obs", obs_space, watched.obs), _by_leaf("action", action_space, watched.action)
    figures = {name: x[:, 0] for name, x in watched.figures.items()}
    arrays = {**observed, **taken, "reward": watched.reward[:, 0].astype(np.float32), **figures}
    arrays["return"] = np.cumsum(arrays["reward"], dtype=np.float64).astype(np.float32)
    if "value" in figures:
        arrays["final_value"] = np.asarray(watched.final_figures["value"])
    final = jax.tree.map(lambda x: x[None], watched.final_obs)
    arrays |= {f"final_{name}": x for name, x in _by_leaf("obs", obs_space, final).items()}
    low, high, discrete = _bounds(action_space)
    arrays["action_low"], arrays["action_high"] = low, high
    known = "" if env.env_wrappers else about.env  # in wrappers, observations may mean anything
    signals = signals_of(known, _plain(observed), _plain(taken), about.env_options)
    arrays |= {SIGNAL + name: np.asarray(signal.values, np.float32) for name, signal in signals.items()}
    units = {name: signal.unit for name, signal in signals.items()}
    return Episode(replace(about, units=units, discrete=discrete), arrays)


def _by_leaf(name: str, space: Space, rows: Tree) -> dict[str, np.ndarray]:
    """Return the values of a space `[T, 1, ...]` as arrays `[T, ...]` by the names of their leaves."""
    named = zip(leaves(space), flatten(space, rows), strict=True)
    return {f"{name}/{leaf}" if leaf else name: np.asarray(x)[:, 0] for (leaf, _), x in named}


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
