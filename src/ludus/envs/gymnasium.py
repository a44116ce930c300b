"""Gymnasium environments, and users' own `gymnasium.Env` classes and instances, as a host batch.

This is the only file that imports Gymnasium, and it is imported only when such an environment is asked for.
"""

import copy
import difflib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from ludus.envs.base import HostStep
from ludus.spaces import Box, Discrete, Space
from ludus.types import LudusError


class GymnasiumEnv:
    """`num_envs` environments stepped one after the other, with same-step reset.

    Its own loop instead of `gymnasium.vector`: results go straight into the arrays that are returned, and the true
    successor is kept without the detour over `info`.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], num_envs: int, id: str, options: dict[str, Any]):
        """Make the environments; `make` is called once for each."""
        self.make, self.num_envs, self.id, self.options = make, num_envs, id, options
        self.envs = [make() for _ in range(num_envs)]
        self.observation_space = as_space(self.envs[0].observation_space, f"{id}: observation space")
        self.action_space = as_space(self.envs[0].action_space, f"{id}: action space")
        shape, dtype = (num_envs, *self.observation_space.shape), self.observation_space.dtype
        self._obs, self._next_obs = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated, self._truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self._steps = [env.step for env in self.envs]

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start an episode in each environment, seeded one by one."""
        for i, seed in enumerate(seeds):
            self._obs[i] = self._checked(self._answer(self.envs[i].reset(seed=seed), 2, "reset")[0])
        return self._obs

    def step(self, action: np.ndarray) -> HostStep:
        """Advance every environment; those that ended are reset and go on from their own random state."""
        actions = action.tolist() if isinstance(self.action_space, Discrete) else self._within_bounds(action)
        for i, step in enumerate(self._steps):
            obs, self._reward[i], terminated, truncated, _ = self._answer(step(actions[i]), 5, "step")
            self._next_obs[i] = obs = self._checked(obs)
            self._terminated[i], self._truncated[i] = terminated, truncated
            self._obs[i] = self._checked(self.envs[i].reset()[0]) if terminated or truncated else obs
        return HostStep(self._next_obs, self._obs, self._reward, self._terminated, self._truncated)

    def remake(self, num_envs: int) -> "GymnasiumEnv":
        """Return separate environments of the same kind."""
        return GymnasiumEnv(self.make, num_envs, self.id, self.options)

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _within_bounds(self, action: np.ndarray) -> np.ndarray:
        """Round actions to the environment's own type without leaving its bounds."""
        space: Any = self.envs[0].action_space
        return action if space.dtype == action.dtype else np.clip(action.astype(space.dtype), space.low, space.high)

    def _answer(self, answer: Any, length: int, method: str) -> Any:
        if type(answer) is not tuple or len(answer) != length:
            what = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
            raise LudusError(f"{self.id}: {method}() must return {length} values, as Gymnasium says, got {what}")
        return answer

    def _checked(self, obs: Any) -> Any:
        if np.shape(obs) != self._obs.shape[1:]:
            raise LudusError(
                f"{self.id}: returned an observation of shape {np.shape(obs)}, "
                f"but its observation space says {self._obs.shape[1:]}"
            )
        return obs


def make_gymnasium(env: Any, num_envs: int, options: dict[str, Any]) -> GymnasiumEnv:
    """Make a batch from an id, an instance (which is copied), or a class or function that makes one."""
    if isinstance(env, str):
        return GymnasiumEnv(lambda: _make_by_id(env, options), num_envs, f"gym:{env}", options)
    if isinstance(env, gymnasium.Env):
        return GymnasiumEnv(lambda: _copy(env), num_envs, f"object:{type(env.unwrapped).__qualname__}", options)
    if callable(env):
        return GymnasiumEnv(
            lambda: _made(env(**options)), num_envs, f"object:{getattr(env, '__qualname__', env)}", options
        )
    raise LudusError(f"env={env!r}: must be an id, a gymnasium.Env, its class, or a ludus Environment")


def as_space(space: Any, name: str) -> Space:
    """Translate a Gymnasium space, or refuse it by name."""
    if isinstance(space, gymnasium.spaces.Discrete) and int(space.start) == 0:
        return Discrete(int(space.n))
    if isinstance(space, gymnasium.spaces.Box):
        # Images stay bytes; all other numbers are kept as float32, which is what networks compute in.
        is_action = name.endswith("action space")
        dtype = str(space.dtype) if space.dtype == np.uint8 or (is_action and space.dtype.kind != "f") else "float32"
        return Box.from_arrays(space.low, space.high, dtype)
    raise LudusError(f"{name} {space} is not supported; Discrete (from 0) and Box are")


def known_ids() -> list[str]:
    """Return every id that Gymnasium knows."""
    return list(gymnasium.registry)


def _make_by_id(id: str, options: dict[str, Any]) -> gymnasium.Env:
    try:
        return gymnasium.make(id, disable_env_checker=True, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise LudusError(f"env={id}: {error}") from error
    except gymnasium.error.Error as error:
        close = difflib.get_close_matches(id, known_ids(), 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise LudusError(f"env={id}: no such environment{hint}") from error
    except (TypeError, ValueError, AssertionError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LudusError(f"env_options={options}: {id} does not take them ({message})") from error


def _made(env: Any) -> gymnasium.Env:
    if not isinstance(env, gymnasium.Env):
        raise LudusError(f"env: expected a gymnasium.Env, got {type(env).__name__}")
    return env


def _copy(env: gymnasium.Env) -> gymnasium.Env:
    try:
        return copy.deepcopy(env)
    except Exception as error:  # whatever a user's object raises when copied
        raise LudusError(f"env: {type(env).__name__} cannot be copied ({error}); pass its class instead") from error
