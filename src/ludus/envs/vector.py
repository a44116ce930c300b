"""A batch of one JAX environment: vmap, same-step reset, time limit, episode statistics."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.base import Environment
from ludus.rows import choose_rows
from ludus.seeding import spread
from ludus.spaces import Space, map_leaves
from ludus.summing import add
from ludus.types import Masked, Step


class VectorState(NamedTuple):
    """Where every copy is, what it shows, and what its running episode has gathered."""

    env: Any
    obs: Any
    episode_return: jax.Array
    return_rest: jax.Array
    """What `episode_return` leaves out by being a float32."""
    episode_length: jax.Array
    info: dict[str, jax.Array] = {}  # noqa: RUF012  a NamedTuple's default; never written to
    """Running sum of every number that the environment puts into `Step.info`."""


class EpisodeSoFar(NamedTuple):
    """What the running episode of each copy came to, up to and including the latest step."""

    episode_return: jax.Array
    episode_length: jax.Array
    info_total: dict[str, jax.Array]
    info_last: dict[str, jax.Array]


class Draw(NamedTuple):
    """The randomness of one step: a key for the dynamics and a start in case the episode ends."""

    key: jax.Array
    start: tuple[Any, Any]


@dataclass(frozen=True)
class VectorEnv:
    """`num_envs` copies of `env`; hashable, so that equal batches share one compiled program."""

    env: Environment
    num_envs: int
    id: str
    max_episode_steps: int | None = None
    """Time limit; None takes the environment's own."""
    options: tuple[tuple[str, Any], ...] = ()
    """What `make_env` was given besides the id, for the record."""

    def __post_init__(self) -> None:
        """Fill in the time limit."""
        if self.max_episode_steps is None:
            object.__setattr__(self, "max_episode_steps", self.env.max_episode_steps)

    @property
    def observation_space(self) -> Space:
        """What one copy shows."""
        return self.env.observation_space

    @property
    def action_space(self) -> Space:
        """What one copy takes."""
        return self.env.action_space

    @property
    def return_threshold(self) -> float | None:
        """The mean return from which on the task counts as solved."""
        return self.env.return_threshold

    def remake(self, num_envs: int) -> "VectorEnv":
        """Return a batch of another size."""
        return replace(self, num_envs=num_envs)

    def close(self) -> None:
        """Nothing is held; here so that both kinds of environment can be closed alike."""

    def reset(self, keys: jax.Array) -> VectorState:
        """Start every copy, each from its own key `[B]`."""
        env_state, obs = jax.vmap(self._start)(keys)
        zeros = jnp.zeros(len(keys), jnp.float32)
        info = dict.fromkeys(_info_names(self.env), zeros)
        return VectorState(env_state, obs, zeros, zeros, jnp.zeros(len(keys), jnp.int32), info)

    def draw(self, step_key: jax.Array, start_key: jax.Array, num_steps: int) -> Draw:
        """Draw the randomness of `num_steps` steps at once: far cheaper than step by step."""
        shape = (num_steps, self.num_envs)
        return Draw(spread(step_key, shape), jax.vmap(jax.vmap(self._start))(spread(start_key, shape)))

    def step(self, state: VectorState, action: Any, draw: Draw) -> tuple[VectorState, Step]:
        """Advance every copy and start the ended ones anew.

        The returned `Step` holds the true successor; the state's `obs` is what to act on next. `Step.info`
        is an `EpisodeSoFar`.
        """
        env_state, step = jax.vmap(self._advance)(state.env, action, draw.key)
        reward = jnp.asarray(step.reward, jnp.float32)
        episode_return, return_rest = add(state.episode_return, state.return_rest, reward)
        episode_length = state.episode_length + 1
        terminated = jnp.broadcast_to(step.terminated, reward.shape)
        truncated = jnp.broadcast_to(step.truncated, reward.shape)
        if self.max_episode_steps is not None:
            truncated = truncated | (episode_length >= self.max_episode_steps)
        ended = terminated | truncated
        env_state, obs = choose_rows(ended, draw.start, (env_state, step.obs))
        last = {name: jnp.asarray(step.info[name], jnp.float32) for name in state.info}
        total = {name: state.info[name] + x for name, x in last.items()}
        after = VectorState(
            env_state,
            obs,
            jnp.where(ended, 0.0, episode_return),
            jnp.where(ended, 0.0, return_rest),
            jnp.where(ended, 0, episode_length),
            {name: jnp.where(ended, 0.0, x) for name, x in total.items()},
        )
        so_far = EpisodeSoFar(episode_return, episode_length, total, last)
        return after, Step(step.obs, reward, terminated, truncated, so_far)

    def _start(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.env.reset(key)
        return state, self._shown(state, obs)

    def _advance(self, state: Any, action: Any, key: jax.Array) -> tuple[Any, Step]:
        state, step = self.env.step(state, action, key)
        return state, step._replace(obs=self._shown(state, step.obs))

    def _shown(self, state: Any, obs: Any) -> Any:
        mask = self.env.action_mask(state)
        return obs if mask is None else Masked(obs, mask)


@lru_cache
def _info_names(env: Environment) -> tuple[str, ...]:
    """Return the names under which an environment's `Step.info` holds one number each."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = map_leaves(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), env.action_space)
    info = jax.eval_shape(env.step, jax.eval_shape(env.reset, key)[0], action, key)[1].info
    if not isinstance(info, dict):
        return ()
    return tuple(sorted(name for name, x in info.items() if getattr(x, "shape", None) == ()))
