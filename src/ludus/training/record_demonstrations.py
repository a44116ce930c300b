"""Recording demonstrations: a policy plays whole episodes, and everything that learning needs of them is kept."""

import itertools
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.policy import Policy
from ludus.algorithms.registry import name_of
from ludus.envs.base import AnyEnv
from ludus.networks.action_scaling import action_size, to_environment
from ludus.networks.distributions import distribution_for, restricted, sampling_noise
from ludus.rollout.runner import runner
from ludus.runtime.demonstrations import Demonstrations
from ludus.runtime.packing import choose_rows
from ludus.runtime.rng import folded, stream
from ludus.spaces import Box, Dict, Leaf, Tuple, flatten, leaves, unflatten
from ludus.training.evaluation import check_match
from ludus.types import MAX_EPISODE_STEPS, Course, LudusError, Mode, RolloutKeys, Spec, Tree, split_mask

CHUNK_STEPS = 256
"""Steps of each environment that one program makes."""
MOST_ROUNDS, MOST_LOST = 100, 10
"""So often environments are started anew, where episodes do not end; so many may break in each before that."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Demonstrator:
    """A policy of which a share of the actions is drawn by chance instead, all allowed ones alike."""

    acting: Algorithm
    share: jax.Array
    spec: Spec = field(metadata={"static": True})
    mode: Mode = field(metadata={"static": True})

    def initial_memory(self, policy: Tree, n: int) -> Tree:
        """Return the policy's."""
        return self.acting.initial_memory(policy, n)

    def noise(self, policy: Tree, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Draw the policy's, whether chance is to act, and what it would do."""
        own, whether, what = jax.random.split(key, 3)
        return (
            self.acting.noise(policy, own, shape),
            jax.random.uniform(whether, shape),
            sampling_noise(self.spec.action_space, what, shape),
        )

    def act(self, policy: Tree, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Choose actions; the policy remembers what was observed whoever acts."""
        own, whether, what = noise
        memory, action, _ = self.acting.act(policy, memory, obs, None if self.mode == "greedy" else own, self.mode)
        chance = random_action(self.spec, split_mask(obs)[1], what)
        return memory, choose_rows(whether < self.share, chance, action), {}


def random_action(spec: Spec, mask: jax.Array | None, noise: Tree) -> Any:
    """Turn what `sampling_noise` draws into actions: numbers between their bounds or -1 and 1, choices all alike."""
    space = spec.action_space
    if isinstance(space, Dict | Tuple):
        sample: Any = tuple(_even(leaf, part, None) for (_, leaf), part in zip(leaves(space), noise, strict=True))
    else:
        sample = _even(space, noise, mask)
    return to_environment(space, sample, spec.scaling)


def _even(leaf: Leaf, noise: jax.Array, mask: jax.Array | None) -> jax.Array:
    if isinstance(leaf, Box):
        return jax.lax.erf(noise / np.float32(np.sqrt(2)))  # of a normal number, an even one between -1 and 1
    logits = jnp.zeros((*noise.shape[: noise.ndim - bool(leaf.shape)], action_size(leaf)))
    return restricted(leaf, distribution_for(leaf, logits, None), mask).sample(noise)


class _Lane:
    """The episodes of one environment, put together from pieces of rollouts."""

    def __init__(self, wanted: int, most: int):
        """Begin with nothing played: `wanted` are asked for, of `most` steps each."""
        self.wanted, self.most = wanted, most
        self.episodes: list[list[np.ndarray]] = []
        self._pieces: list[list[np.ndarray]] = []
        self._made, self._lost, self._is_stuck = 0, 0, False

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be expected of it: an episode that was cut may never end."""
        return self._is_stuck or self._lost >= MOST_LOST or len(self.episodes) >= self.wanted

    def add(self, rows: list[np.ndarray], ended: np.ndarray, valid: np.ndarray) -> None:
        """Take in arrays `[T, ...]` of a rollout; where `valid` is False the running episode broke, and is dropped."""
        first = 0
        for stop in (np.flatnonzero(ended | ~valid) + 1).tolist():
            if valid[stop - 1]:
                self._take([x[first:stop] for x in rows], is_over=True)
            else:
                self._pieces, self._made, self._lost = [], 0, self._lost + 1
            first = stop
        self._take([x[first:] for x in rows], is_over=False)

    def _take(self, rows: list[np.ndarray], is_over: bool) -> None:
        if self.is_done:
            return
        self._pieces.append([x[: self.most - self._made] for x in rows])
        self._made += len(rows[0])
        is_cut = self._made >= self.most
        if is_over or is_cut:
            self.episodes.append([np.concatenate(parts) for parts in zip(*self._pieces, strict=True)])
            self._pieces, self._made, self._is_stuck = [], 0, not is_over


def record_demonstrations(
    policy: Policy,
    env: AnyEnv,
    episodes: int = 100,
    seed: int = 0,
    *,
    deterministic: bool = True,
    random_actions: float = 0.0,
    max_steps: int = MAX_EPISODE_STEPS,
) -> Demonstrations:
    """Let a policy play whole episodes and return all of them, to learn from or to write to a file.

    They begin as episodes of training do, never in an evaluation's scenarios. The environments are started anew.

    Args:
        policy: as `load_policy` returns it.
        env: made by `ludus.make_env`; all of its copies play at once, each as many episodes as the others.
        episodes: how many.
        seed: decides how they begin, and all that is left to chance; it has nothing in common with evaluations.
        deterministic: take the greedy action; False samples from the policy's distribution.
        random_actions: the share of actions that is drawn by chance instead, from 0 to 1: a policy that is right half
            of the time with 0.5.
        max_steps: steps after which an episode is cut, which counts as truncated.
    """
    check_match(policy, env)
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0), ("max_steps", max_steps, 1)):
        if not isinstance(value, Integral) or value < least:
            raise LudusError(f"{name}={value}: must be an integer of at least {least}")
    if not isinstance(random_actions, Real) or not 0 <= random_actions <= 1:
        raise LudusError(f"random_actions={random_actions}: must be between 0 and 1")
    mode: Mode = "greedy" if deterministic else "sample"
    demonstrator = Demonstrator(policy.acting, jnp.float32(random_actions), policy.spec, mode)
    made: list[list[np.ndarray]] = []
    for number in range(MOST_ROUNDS):
        lanes = [_Lane(n, int(max_steps)) for n in _shares(int(episodes) - len(made), env.num_envs)]
        keys = [stream(seed, f"demonstrations {number} {name}") for name in ("start", *RolloutKeys._fields)]
        structure = _play(demonstrator, policy.state, env, keys, int(seed), lanes)
        rows = [lane.episodes for lane in lanes]
        made += [each[i] for i in range(max(map(len, rows))) for each in rows if i < len(each)]
        if len(made) >= episodes:
            about = {
                "algorithm": name_of(policy.algorithm),
                "trained_in": policy.env_id,
                "deterministic": bool(deterministic),
                "random_actions": float(random_actions),
                "seed": int(seed),
            }
            return _demonstrations(env, made, structure, about)
    raise LudusError(f"{env.id}: its episodes break again and again; {len(made)} of {episodes} were recorded")


def _shares(count: int, lanes: int) -> list[int]:
    """Return how many of the episodes each environment plays: those that end first are no more than the others."""
    return [count // lanes + (i < count % lanes) for i in range(lanes)]


def _play(
    demonstrator: Demonstrator, policy: Tree, env: AnyEnv, keys: list[jax.Array], seed: int, lanes: list[_Lane]
) -> Any:
    """Play until every lane is done; return the tree whose leaves the rows of its episodes are."""
    supply, steps, structure = env.supply(seed), min(CHUNK_STEPS, lanes[0].most), None
    starts = supply.first()
    carry = runner(env).start(demonstrator, env, policy, keys[0], Course(data=supply.data, starts=starts))
    collect = runner(env).whole(partial(runner(env).collect, env=env, num_steps=steps))
    for number in itertools.count():
        if all(lane.is_done for lane in lanes):
            break
        now, course = folded(RolloutKeys(*keys[1:]), np.int32(number)), Course(data=supply.data)
        carry, rollout, _ = collect(algorithm=demonstrator, policy=policy, carry=carry, keys=now, course=course)
        made = jax.device_get(rollout.steps)
        obs, mask = split_mask(made.obs)
        tree = (obs, mask, made.action, made.reward, made.terminated, made.truncated, split_mask(made.next_obs)[0])
        rows, structure = jax.tree.flatten(tree)
        valid = np.ones(made.reward.shape, bool) if made.valid is None else np.asarray(made.valid)
        for b, lane in enumerate(lanes):
            lane.add([np.asarray(x)[:, b] for x in rows], (made.terminated | made.truncated)[:, b], valid[:, b])
    return structure


def _demonstrations(env: AnyEnv, made: list[list[np.ndarray]], structure: Any, about: dict[str, Any]) -> Demonstrations:
    """Put episodes together; one that was cut by us counts as truncated."""
    whole = [np.concatenate(parts) for parts in zip(*made, strict=True)]
    obs, mask, action, reward, terminated, truncated, next_obs = jax.tree.unflatten(structure, whole)
    ends = np.cumsum([len(rows[0]) for rows in made]) - 1
    truncated = truncated.copy()
    truncated[ends] |= ~terminated[ends]
    final = [np.asarray(x)[ends] for x in flatten(env.observation_space, next_obs)]
    return Demonstrations(
        env.observation_space,
        env.action_space,
        obs,
        action,
        reward,
        terminated,
        truncated,
        unflatten(env.observation_space, final),
        mask,
        env.id,
        about,
    )
