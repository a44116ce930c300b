"""EnvPool environments as a host batch: C++ simulators stepped by threads.

This is the only file that imports EnvPool, and it is imported only when such an environment is asked for.
"""

import difflib
import logging
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import envpool
import numpy as np
from envpool.registration import registry

from ludus.envs.adapters.gymnasium import make_gymnasium
from ludus.envs.adapters.gymnasium_factory import return_threshold
from ludus.envs.adapters.gymnasium_spaces import as_space
from ludus.envs.base import HostEnv, HostStep, Observation
from ludus.envs.host.action_log import Growing, LoggedRows, Recalled
from ludus.envs.host.info_stats import EpisodeInfo
from ludus.runtime import processes, secrets
from ludus.runtime.summation import add
from ludus.spaces import Box, Space, flatten, leaves, unflatten
from ludus.types import LudusError

# Ids whose simulators compute with their time limit, so that moving it would change what they show or pay.
_TIMED_INSIDE = ("envpool.minigrid", "envpool.mujoco.playground")
_NO_LIMIT = np.iinfo(np.int32).max
_ABOUT_THE_POOL = ("env_id", "players", "elapsed_step")
# What is not the environment's: the batch, its seeds, and modes in which EnvPool does not answer for every one at once.
_OURS = ("num_envs", "batch_size", "seed", "env_seed", "max_num_players", "gym_reset_return_info", "render_mode")

MOST_BYTES = 1 << 28
"""Once the actions since a pool was made take more than this they are let go: then it cannot be brought back."""

_log = logging.getLogger(__name__)


class EnvPoolEnv(HostEnv):
    """`num_envs` environments in one pool, with same-step reset.

    EnvPool itself resets at the step after an episode's end and ignores that step's action. Here the ended ones are
    reset at once, by a call for them alone, so that there is no such step and the true successor is kept.

    EnvPool also reports an episode that terminates on the last step of its time limit as truncated alone. So the
    limit is kept here and the pool is given one that is a step longer and never reached.
    """

    def __init__(self, name: str, num_envs: int, options: dict[str, Any]):
        """Make a pool of one, which tells the spaces and what is wrong; `reset` makes the pool that is stepped."""
        self.name, self.num_envs, self.id, self.options = name, num_envs, f"envpool:{name}", options
        self._config = {"num_threads": min(num_envs, processes.cores()), **secrets.filled("env_options", options)}
        self._pool: Any = self._make([0])
        if self._pool.config["max_num_players"] > 1:
            raise LudusError(f"env={self.id}: has several players; only environments with one are supported")
        self.observation_space, self.action_space, self._own_action_space = _spaces(self._pool, name, self.id)
        self._leaves = [space for _, space in leaves(self.observation_space)]
        limit = self._pool.config["max_episode_steps"]
        self._limit = limit if 0 < limit < _NO_LIMIT and registry.specs[name][0] not in _TIMED_INSIDE else _NO_LIMIT
        if self._limit < _NO_LIMIT:
            self._config["max_episode_steps"] = limit + 1
        self.max_episode_steps = limit if 0 < limit < _NO_LIMIT else None
        self._info = EpisodeInfo(num_envs)
        self._seeds: list[int] = []
        self._actions: LoggedRows | None = LoggedRows()
        self._steps = self._began = 0
        self._has_warned = False

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start an episode in each environment, seeded one by one: EnvPool takes seeds only when a pool is made."""
        seeds = [*seeds, *range(len(seeds), self.num_envs)]
        self.close()
        self._seeds, self._actions = [int(seed) & _NO_LIMIT for seed in seeds], LoggedRows()
        self._began = self._steps
        self._pool = self._make(self._seeds)
        self._info.begin()
        shown, info = self._pool.reset()
        self._info_names = [name for name in info if name not in _ABOUT_THE_POOL and _is_number(info[name])]
        return unflatten(self.observation_space, self._arrays(shown))

    def step(self, action: np.ndarray) -> HostStep:
        """Advance every environment; those that ended are reset and go on from their own random state."""
        self._remember(action)
        shown, reward, terminated, truncated, info = self._pool.step(self._within_bounds(action))
        truncated = truncated | (info["elapsed_step"] >= self._limit)
        self._info.next_step()
        self._info.add_batch({name: info[name] for name in self._info_names})
        next_arrays = arrays = self._arrays(shown)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            for index in ended.tolist():
                self._info.end(index)
            arrays = [array.copy() for array in next_arrays]
            for array, start in zip(arrays, self._arrays(self._pool.reset(ended)[0]), strict=True):
                array[ended] = start
        return HostStep(
            next_obs=unflatten(self.observation_space, next_arrays),
            obs=unflatten(self.observation_space, arrays),
            reward=reward.astype(np.float32, copy=False),
            terminated=terminated,
            truncated=truncated,
            info=(self._info,),
        )

    def snapshot(self) -> dict[str, Any]:
        """Return what it takes to come back: the seeds and every action since, unless these have become too many.

        A pool takes seeds only when it is made, and an episode goes on with the random numbers of the one before: there
        is no later point to start from.
        """
        saved = {"seeds": np.asarray(self._seeds, np.int64), "steps": np.asarray(self._steps, np.int64)}
        if self._actions is not None:
            return saved | {"actions": Growing(self._actions, len(self._actions), self._began)}
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: the actions since its start take more than %d MiB and are kept no longer: a run that is resumed "
                "from here on starts its running episodes anew (level: episode)",
                self.id,
                MOST_BYTES >> 20,
            )
        return saved

    def restore(self, saved: dict[str, np.ndarray]) -> Recalled:
        """Come back to where a snapshot was taken by taking every action again; all is lost if they were too many."""
        seeds, actions, steps = saved.get("seeds"), saved.get("actions"), saved.get("steps")
        if seeds is None or seeds.shape != (self.num_envs,) or not _fit(actions, steps, self.num_envs):
            raise LudusError(f"checkpoint: what it says of the environments is not for {self.num_envs} of {self.id}")
        taken = 0 if actions is None else len(actions)
        self._steps = 0 if steps is None else int(steps) - taken  # early checkpoints do not say what was before
        obs = self.reset(seeds.tolist())
        returns = rest = np.zeros(self.num_envs, np.float32)
        if actions is None:
            self._actions = None
            return Recalled(obs, returns, np.ones(self.num_envs, bool))
        for action in actions:
            outcome = self.step(action)
            obs, is_over = outcome.obs, outcome.terminated | outcome.truncated
            returns, rest = (np.where(is_over, np.float32(0), x) for x in add(returns, rest, outcome.reward))
        return Recalled(obs, returns, np.zeros(self.num_envs, bool))

    def restart(self) -> Observation:
        """Start every environment anew, with seeds that were not used before."""
        sequences = (np.random.SeedSequence([seed, self._steps]) for seed in self._seeds)
        return self.reset([int(sequence.generate_state(1)[0]) for sequence in sequences])

    def remake(self, num_envs: int) -> "EnvPoolEnv":
        """Return separate environments of the same kind."""
        return EnvPoolEnv(self.name, num_envs, self.options)

    def close(self) -> None:
        """Let go of the pool, which stops its threads."""
        self._pool = None

    def _remember(self, action: np.ndarray) -> None:
        """Take note of actions that are about to be taken; give that up once they are too many."""
        self._steps += 1
        if self._actions is not None:
            self._actions.add(action)
            if len(self._actions) * action.nbytes > MOST_BYTES:
                self._actions = None

    def _make(self, seeds: list[int]) -> Any:
        try:
            pool = envpool.make_gymnasium(self.name, num_envs=len(seeds), seed=seeds, **self._config)
            with warnings.catch_warnings(action="ignore"):  # Gymnasium says that bounds are rounded to float32
                pool.observation_space, pool.action_space  # noqa: B018  (made when first asked for, then kept)
            return pool
        except (TypeError, ValueError, AssertionError) as error:
            raise LudusError(f"env_options={self.options}: {self.id} does not take them ({_line(error)})") from error
        except (ImportError, OSError, RuntimeError) as error:  # a system library or an asset that is not there
            raise LudusError(f"env={self.id}: EnvPool cannot make it ({_line(error)})") from error

    def _arrays(self, shown: Observation) -> list[np.ndarray]:
        """Take what the pool shows apart, in the types of our spaces. The pool never writes into it again."""
        arrays = flatten(self.observation_space, shown)
        return [a.astype(space.dtype, copy=False) for a, space in zip(arrays, self._leaves, strict=True)]

    def _within_bounds(self, action: np.ndarray) -> np.ndarray:
        """Round actions to the pool's own type without leaving its bounds."""
        own = self._own_action_space
        if own.dtype == action.dtype or not isinstance(self.action_space, Box):
            return action
        return np.clip(action.astype(own.dtype), own.low, own.high)


def make_envpool(name: str, num_envs: int, options: dict[str, Any]) -> EnvPoolEnv:
    """Make a batch from one of EnvPool's ids."""
    if name not in registry.specs:
        close = difflib.get_close_matches(name, registry.specs, 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise LudusError(f"env=envpool:{name}: no such environment{hint}")
    limit = options.get("max_episode_steps", 1)
    if not isinstance(limit, int) or limit < 1:
        raise LudusError(f"env_options.max_episode_steps={limit}: must be an integer of at least 1")
    if misplaced := [option for option in _OURS if option in options]:
        raise LudusError(f"env_options.{misplaced[0]}: not an option of envpool:{name}")
    batch = EnvPoolEnv(name, num_envs, options)
    batch.return_threshold = return_threshold(name)
    return batch


def _spaces(pool: Any, name: str, id: str) -> tuple[Space, Space, Any]:
    """Return the spaces of observations and of actions, and the latter as EnvPool has it."""
    seen, done = pool.observation_space, pool.action_space
    without_bounds = _open_bounds(seen)
    space = as_space(seen, f"{id}: observation space")
    known = _gymnasium_space(name) if without_bounds else None
    if isinstance(known, Box) and isinstance(space, Box) and (known.shape, known.dtype) == (space.shape, space.dtype):
        space = known
    return space, as_space(done, f"{id}: action space"), done


def _open_bounds(space: Any) -> bool:
    """Make bounds that stand for none infinite, and say if there were any.

    Where there is no lower bound EnvPool writes the least positive float32.
    """
    if hasattr(space, "spaces"):
        return sum(_open_bounds(part) for part in space.spaces.values()) > 0
    limits = np.finfo(np.float32)
    if space.dtype != np.float32 or not (space.low == limits.tiny).any():
        return False
    space.low[space.low == limits.tiny] = -np.inf
    space.high[space.high == limits.max] = np.inf
    return True


@lru_cache
def _gymnasium_space(name: str) -> Space | None:
    """Return what Gymnasium's environment of this id shows; policies can move between spaces that are equal."""
    try:
        with warnings.catch_warnings(action="ignore"):
            env = make_gymnasium(name, 1, {})
    except LudusError:
        return None
    env.close()
    return env.observation_space


def _fit(actions: np.ndarray | None, steps: np.ndarray | None, num_envs: int) -> bool:
    """Say whether recorded actions are those of so many environments, and no more than the steps that were counted."""
    taken = 0 if actions is None else len(actions)
    if steps is None:  # as in early checkpoints, which hold all actions
        is_counted = actions is not None
    else:
        is_counted = steps.shape == () and steps.dtype == np.int64 and int(steps) >= taken
    return is_counted and (actions is None or not taken or actions.shape[1:2] == (num_envs,))


def _is_number(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf"


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
