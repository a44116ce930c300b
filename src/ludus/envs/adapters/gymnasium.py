"""Gymnasium environments, and users' own `gymnasium.Env` classes and instances, as a host batch.

This file and its two siblings are the only ones that import Gymnasium, and only when such an environment is asked for.
"""

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from ludus.envs.adapters.gymnasium_factory import Make, factory
from ludus.envs.adapters.gymnasium_spaces import NativeActions, Rows, as_space
from ludus.envs.base import Action, HostEnv, HostStep, Observation
from ludus.envs.host import answers, shared_generators
from ludus.envs.host.action_log import EpisodeLog, Recalled
from ludus.envs.host.info_stats import EpisodeInfo
from ludus.envs.host.observation_buffer import MASK, ObservationBuffer
from ludus.envs.host.shared_generators import SharedGenerators
from ludus.runtime.summation import add
from ludus.types import LudusError

KEEP_HISTORY = ("BipedalWalker", "CarRacing")
"""Gymnasium's environments that reset into the physics world of the episodes before, whose order of contacts shows in
the last bits of all that follows: they are made anew for each episode, which takes about as long as a reset."""

_log = logging.getLogger(__name__)


class GymnasiumEnv(HostEnv):
    """`num_envs` environments stepped one after the other, with same-step reset.

    Its own loop instead of `gymnasium.vector`: results go straight into the arrays that are returned, and the true
    successor is kept without the detour over `info`.
    """

    def __init__(
        self, make: Make, num_envs: int, id: str, options: dict[str, Any], at: memoryview | list[int] | None = None
    ):
        """Make the environments; `make` is called once for each.

        `at` is where to write down which environment is at work, and whether it resets (1) or not (0): who watches
        from another process can tell from it who hangs.
        """
        self.make, self.num_envs, self.id, self.options = make, num_envs, id, options
        self._is_in_worker = at is not None
        self._at = [0, 0] if at is None else at
        self.envs = [self._made(index) for index in range(num_envs)]
        self.info = EpisodeInfo(num_envs)
        self.observation_space = as_space(self.envs[0].observation_space, f"{id}: observation space")
        self.action_space = as_space(self.envs[0].action_space, f"{id}: action space")
        self._native = NativeActions(self.envs[0].action_space, self.action_space)
        self._hooks = _hooks(self.envs) if at is None else []
        # In a worker it is the parent that keeps the actions.
        self._log = EpisodeLog(num_envs, self.action_space, keeps_actions=at is None and not self._hooks)
        self._shown, self._successors = (ObservationBuffer(self, self.where) for _ in range(2))
        self._has_begun = False
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated, self._truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self._steps = [env.step for env in self.envs]
        self._keeps_history = type(self.envs[0].unwrapped).__name__ in KEEP_HISTORY
        self._has_history = [False] * num_envs
        self.generators = SharedGenerators()

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start an episode in each environment, seeded one by one."""
        self.generators.seed(seeds)
        self.info.begin()
        self._log.begin(seeds)
        for i in range(len(seeds)):
            self._start(i)
        self._shown.check_choice()
        return self._shown.value

    def step(self, action: Action) -> HostStep:
        """Advance every environment; those that ended are reset, each episode with a seed of its own."""
        self._log.add(action)
        actions = self._native.rows(action)
        self.info.next_step()
        for i, step in enumerate(self._steps):
            self._at[0], self._at[1] = i, 0
            obs, reward, terminated, truncated, info = self._answer(i, 5, "step", step, actions[i])
            if info:
                self.info.add(i, info)
            self._successors.put(i, obs, info)
            self._reward[i] = self._taken(i, "reward", answers.number, reward)
            self._terminated[i] = self._taken(i, "terminated", answers.flag, terminated)
            self._truncated[i] = self._taken(i, "truncated", answers.flag, truncated)
        self._shown.copy(self._successors)
        for i, ended in enumerate((self._terminated | self._truncated).tolist()):
            if ended:
                self.info.end(i)
                self._log.end(i)
                self._start(i)
        self._shown.check_choice()
        return HostStep(
            self._successors.value, self._shown.value, self._reward, self._terminated, self._truncated, (self.info,)
        )

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return what it takes to come back to where the environments are."""
        saved = {**self._log.snapshot(), "generators": self.generators.snapshot()}
        if self._hooks:
            saved |= self.info.snapshot()
            for i, env in enumerate(self._hooks):
                saved |= {f"own/{i}/{name}": np.array(value) for name, value in env.ludus_snapshot().items()}
        return saved

    def restore(self, saved: dict[str, np.ndarray]) -> Recalled:
        """Come back to where a snapshot was taken: by the environment's own means, or by playing episodes again."""
        self.generators.borrow()
        if self._hooks:
            self._restore_own(saved)
            returns, is_lost, has_drawn = None, np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        else:
            returns, is_lost, has_drawn = self._play_all_again(saved)
        if not self.generators.restore(saved.get("generators")):
            is_lost[:] = True
        if has_drawn.any() and not self._is_in_worker:
            _log.warning(shared_generators.WARNING, self.id)
        return Recalled(self._shown.value, returns, is_lost | has_drawn, has_drawn)

    def restart(self) -> Observation:
        """Start every running episode anew, from its own seed."""
        return self.reset(self._log.running_seeds())

    def remake(self, num_envs: int) -> "GymnasiumEnv":
        """Return separate environments of the same kind."""
        return GymnasiumEnv(self.make, num_envs, self.id, self.options)

    def twin(self) -> "GymnasiumEnv":
        """Return a second batch, for branches."""
        return self.remake(self.num_envs)

    def branch_off(self, saved: dict[str, Any], seeds: Sequence[int]) -> Observation:
        """Come to where a snapshot was taken; from there on each environment's `np_random` draws by another seed."""
        if any(name.startswith("own/") for name in saved):
            self._restore_own(saved)
        else:
            _, is_lost, has_drawn = self._play_all_again(saved)
            if has_drawn.any():
                why = "draws from np.random or random, which the whole process shares, instead of self.np_random"
                raise LudusError(f"env={self.id}: cannot be cloned in the midst of an episode: it {why}")
            if is_lost.any():
                why = "does not come to the same place when the same actions are taken again"
                raise LudusError(f"env={self.id}: cannot be cloned in the midst of an episode: it {why}")
        for env, seed in zip(self.envs, seeds, strict=True):
            env.unwrapped.np_random = np.random.default_rng(seed)
        return self._shown.value

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()
        self.generators.give_back()

    @property
    def frames_per_second(self) -> float:
        """The number of steps that a film of this environment should show in a second."""
        return float(self.envs[0].metadata.get("render_fps") or 30)

    @property
    def has_pictures(self) -> bool:
        """True if the environment can be made with `render_mode="rgb_array"`."""
        return "rgb_array" in (self.envs[0].metadata.get("render_modes") or ())

    def film(self, seed: int, action: Action, every: int = 1) -> Iterator[tuple[int, Observation, Any]]:
        """Play one episode by its seed and actions `[T, ...]`, in an environment of its own.

        Yields number, observation and, of every n-th and of the last, the picture: T + 1 times.
        """
        env, actions = self.make(), self._native.rows(action)
        try:
            yield 0, env.reset(seed=seed)[0], env.render()
            for count, native in enumerate(actions, 1):
                obs = env.step(native)[0]
                yield count, obs, env.render() if count % every == 0 or count == len(actions) else None
        finally:
            env.close()

    def _made(self, index: int) -> gymnasium.Env:
        self._at[0], self._at[1] = index, 0
        return self.make()

    def _start(self, index: int) -> None:
        """Start an episode from its own seed, so that it depends on nothing that was before."""
        self._at[0], self._at[1] = index, 1
        if self._has_history[index]:
            self.envs[index].close()
            self.envs[index] = self.make()
            self._steps[index] = self.envs[index].step
        self._has_history[index] = self._keeps_history
        reset = partial(self.envs[index].reset, seed=self._log.seed(index))
        self._put_start(index, *self._answer(index, 2, "reset", reset))

    def _play_all_again(self, saved: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Play the running episodes again; return what they have gathered, and which were lost or draw what is shared.

        An episode that draws nothing from the shared generators now drew nothing then: up to the first number that is
        drawn there, both are the same.
        """
        self.info.begin()
        returns = np.zeros(self.num_envs, np.float32)
        is_lost, has_drawn = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for i, recorded in enumerate(self._log.restore(saved)):
            before = shared_generators.state()
            self._start(i)
            if recorded is None:
                is_lost[i] = True
            else:
                returns[i], is_lost[i] = self._play_again(i, self._native.rows(self._log.actions(recorded)))
            has_drawn[i] = not np.array_equal(before, shared_generators.state())
        return returns, is_lost, has_drawn

    def _play_again(self, index: int, actions: Rows) -> tuple[np.float32, bool]:
        """Take the recorded actions of an episode; return what it has gathered, and whether it ended too early."""
        episode_return, rest, step = np.float32(0), np.float32(0), self.envs[index].step
        for action in actions:
            self._at[1] = 1 - self._at[1]  # who watches sees that it goes on
            obs, reward, terminated, truncated, info = self._answer(index, 5, "step", step, action)
            self.info.add(index, info)
            self._shown.put(index, obs, info)
            reward = np.float32(self._taken(index, "reward", answers.number, reward))
            episode_return, rest = add(episode_return, rest, reward)
            if terminated or truncated:
                return episode_return, True
        return episode_return, False

    def _restore_own(self, saved: dict[str, np.ndarray]) -> None:
        """Give each environment back what it saved of itself."""
        self._log.restore(saved)
        for i, env in enumerate(self._hooks):
            prefix = f"own/{i}/"
            own = {name.removeprefix(prefix): x for name, x in saved.items() if name.startswith(prefix)}
            self._start(i)
            self._shown.put(i, *self._answer(i, 2, "ludus_restore", env.ludus_restore, own))
            _set_elapsed(self.envs[i], int(saved["lengths"][i]))
        self.info.restore(saved)

    def _put_start(self, index: int, obs: object, info: dict[str, Any]) -> None:
        if not self._has_begun:
            self._has_begun = True
            if MASK in info:
                self._shown.expect_masks()
                self._successors.expect_masks()
        self._shown.put(index, obs, info)

    def where(self, index: int) -> str:
        """Say of which environment an error is, and how far that is; of a worker's, its parent says it."""
        if self._is_in_worker:
            return "answered wrongly"
        step, seed = self._log.length(index), self._log.seed(index)
        return f"{self.id}: environment {index} (seed {seed}, step {step} of its episode)"

    def _answer(self, index: int, length: int, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of an environment; return what it answers, if that is as many values as Gymnasium says."""
        try:
            answer = function(*arguments)
        except Exception as error:
            if self._is_in_worker or isinstance(error, LudusError):
                raise  # a worker's parent says who it was
            summary = " ".join(traceback.format_exception_only(error)[-1].split())
            told = LudusError(f"{self.where(index)} raised {summary} in {method}()")
            told.add_note(traceback.format_exc().rstrip())
            raise told from error
        if type(answer) is not tuple or len(answer) != length:
            what = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
            raise LudusError(f"{self.id}: {method}() must return {length} values, as Gymnasium says, got {what}")
        if not isinstance(answer[-1], dict):
            raise LudusError(f"{self.where(index)}: its info is {answers.shown(answer[-1])}, but must be a dict")
        return answer

    def _taken(self, index: int, name: str, take: Callable[[object], Any], value: object) -> Any:
        try:
            return take(value)
        except ValueError as error:
            raise LudusError(f"{self.where(index)}: its {name} {error}") from error


def make_gymnasium(env: object, num_envs: int, options: dict[str, Any]) -> GymnasiumEnv:
    """Make a batch from an id, an instance (which is copied), or a class or function that makes one."""
    make, id = factory(env, options)
    return GymnasiumEnv(make, num_envs, id, options)


def _hooks(envs: list[gymnasium.Env]) -> list[Any]:
    """Return the environments themselves, if they can save and restore what they are; none otherwise."""
    own = [env.unwrapped for env in envs]
    return own if all(hasattr(env, "ludus_snapshot") and hasattr(env, "ludus_restore") for env in own) else []


def _set_elapsed(env: gymnasium.Env, steps: int) -> None:
    """Tell a time limit, if there is one, how long the episode has lasted."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            env._elapsed_steps = steps
        env = env.env
