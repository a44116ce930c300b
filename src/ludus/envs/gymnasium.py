"""Gymnasium environments, and users' own `gymnasium.Env` classes and instances, as a host batch.

This is the only file that imports Gymnasium, and it is imported only when such an environment is asked for.
"""

import copy
import difflib
import math
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ludus import own_code, withheld
from ludus.envs import answers
from ludus.envs.base import HostStep
from ludus.envs.episode_info import EpisodeInfo
from ludus.envs.recall import EpisodeLog, Recalled
from ludus.envs.shown import MASK, Shown
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, flatten, leaves, unflatten
from ludus.summing import add
from ludus.types import LudusError

MEASURED_STEPS, MEASURED_SECONDS = 64, 0.5
"""Steps that `step_seconds` takes, fewer if they last longer than so many seconds."""

KEEP_HISTORY = ("BipedalWalker", "CarRacing")
"""Gymnasium's environments that reset into the physics world of the episodes before, whose order of contacts shows in
the last bits of all that follows: they are made anew for each episode, which takes about as long as a reset."""

RETURN_THRESHOLDS = {"Pendulum-v1": -200.0}
"""Mean returns from which on tasks count as solved of which Gymnasium does not say it."""


LONG_SIDE, MANY_PIXELS = 36, 20_000
"""A frame has two sides of at least so many pixels; one of more than so many in all is worth making smaller first."""

STACK = "{name:gymnasium.wrappers:FrameStackObservation,stack_size:4}"


class GymnasiumEnv:
    """`num_envs` environments stepped one after the other, with same-step reset.

    Its own loop instead of `gymnasium.vector`: results go straight into the arrays that are returned, and the true
    successor is kept without the detour over `info`.
    """

    num_workers = 0
    needs_restart = False
    return_threshold: float | None = None
    max_episode_steps: int | None = None
    env_wrappers: Sequence[Any] = ()
    """What `make_env` was told of wrappers, for the record."""

    def __init__(
        self, make: Callable[[], gymnasium.Env], num_envs: int, id: str, options: dict[str, Any], at: Any = None
    ):
        """Make the environments; `make` is called once for each.

        `at` is where to write down which environment is at work, and whether it resets (1) or not (0): who watches
        from another process can tell from it who hangs.
        """
        self.make, self.num_envs, self.id, self.options = make, num_envs, id, options
        self.placement = ""
        self._at, self._is_in_worker = [0, 0] if at is None else at, at is not None
        self.envs = [self._made(index) for index in range(num_envs)]
        self.info = EpisodeInfo(num_envs)
        self.observation_space = as_space(self.envs[0].observation_space, f"{id}: observation space")
        self.action_space = as_space(self.envs[0].action_space, f"{id}: action space")
        self._native_actions = list(_native_leaves(self.envs[0].action_space))
        self._hooks = _hooks(self.envs) if at is None else []
        # In a worker it is the parent that keeps the actions.
        self._log = EpisodeLog(num_envs, self.action_space, keeps_actions=at is None and not self._hooks)
        self._shown, self._successors = Shown(self), Shown(self)
        self._has_begun = False
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated, self._truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self._steps = [env.step for env in self.envs]
        self._keeps_history = type(self.envs[0].unwrapped).__name__ in KEEP_HISTORY
        self._has_history = [False] * num_envs

    def reset(self, seeds: Sequence[int]) -> Any:
        """Start an episode in each environment, seeded one by one."""
        self.info.begin()
        self._log.begin(seeds)
        for i in range(len(seeds)):
            self._start(i)
        self._shown.check_choice()
        return self._shown.value

    def step(self, action: Any) -> HostStep:
        """Advance every environment; those that ended are reset, each episode with a seed of its own."""
        self._log.add(action)
        actions = self._native(action)
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
        saved = self._log.snapshot()
        if self._hooks:
            saved |= self.info.snapshot()
            for i, env in enumerate(self._hooks):
                saved |= {f"own/{i}/{name}": np.array(value) for name, value in env.ludus_snapshot().items()}
        return saved

    def restore(self, saved: dict[str, np.ndarray]) -> Recalled:
        """Come back to where a snapshot was taken: by the environment's own means, or by playing episodes again."""
        lost = np.zeros(self.num_envs, bool)
        if self._hooks:
            self._restore_own(saved)
            return Recalled(self._shown.value, None, lost)
        self.info.begin()
        returns = np.zeros(self.num_envs, np.float32)
        for i, recorded in enumerate(self._log.restore(saved)):
            self._start(i)
            if recorded is None:
                lost[i] = True
            else:
                returns[i], lost[i] = self._play_again(i, self._native(self._log.actions(recorded)))
        return Recalled(self._shown.value, returns, lost)

    def restart(self) -> Any:
        """Start every running episode anew, from its own seed."""
        return self.reset(self._log.running_seeds())

    def remake(self, num_envs: int) -> "GymnasiumEnv":
        """Return separate environments of the same kind."""
        return GymnasiumEnv(self.make, num_envs, self.id, self.options)

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    @property
    def frames_per_second(self) -> float:
        """How many steps a film of this environment should show in a second."""
        return float(self.envs[0].metadata.get("render_fps") or 30)

    @property
    def has_pictures(self) -> bool:
        """Whether the environment can be made with `render_mode="rgb_array"`."""
        return "rgb_array" in (self.envs[0].metadata.get("render_modes") or ())

    def film(self, seed: int, action: Any, every: int = 1) -> Iterator[tuple[int, Any, Any]]:
        """Play one episode by its seed and actions `[T, ...]`, in an environment of its own.

        Yields number, observation and, of every n-th and of the last, the picture: T + 1 times.
        """
        env, actions = self.make(), self._native(action)
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

    def _play_again(self, index: int, actions: Any) -> tuple[np.float32, bool]:
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

    def _put_start(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        if not self._has_begun:
            self._has_begun = True
            if MASK in info:
                self._shown.expect_masks()
                self._successors.expect_masks()
        self._shown.put(index, obs, info)

    def _native(self, action: Any) -> Any:
        """Return one action for each environment, in its own types."""
        if not isinstance(self.action_space, Dict | Tuple):
            return _native_rows(self._native_actions[0], action)
        leaves = flatten(self.action_space, action)
        rows = [_native_rows(space, leaf) for space, leaf in zip(self._native_actions, leaves, strict=True)]
        return [unflatten(self.action_space, parts) for parts in zip(*rows, strict=True)]

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

    def _taken(self, index: int, name: str, take: Callable[[Any], Any], value: Any) -> Any:
        try:
            return take(value)
        except ValueError as error:
            raise LudusError(f"{self.where(index)}: its {name} {error}") from error


def make_gymnasium(env: Any, num_envs: int, options: dict[str, Any]) -> GymnasiumEnv:
    """Make a batch from an id, an instance (which is copied), or a class or function that makes one."""
    make, id = recipe(env, options)
    return GymnasiumEnv(make, num_envs, id, options)


def recipe(
    env: Any, options: dict[str, Any], wrappers: Sequence[tuple[str, dict[str, Any]]] = ()
) -> tuple[Callable[[], gymnasium.Env], str]:
    """Return how to make one environment, in this process or in another, and the id that it will have.

    The modules that an id such as `module:Id` and wrappers name must have been imported.
    """
    make, id = _bare_recipe(env, options)
    return partial(_wrapped, make, tuple(map(tuple, wrappers))) if wrappers else make, id


def _bare_recipe(env: Any, options: dict[str, Any]) -> tuple[Callable[[], gymnasium.Env], str]:
    if isinstance(env, str):
        id = env.rpartition(":")[2]
        _check_version(id)
        # With what is registered under the id: a worker process has not run the user's registrations.
        return partial(_make_by_id, env, options, gymnasium.registry.get(id)), f"gym:{env}"
    if isinstance(env, gymnasium.Env):
        if unknown := sorted(options.keys() - {"max_episode_steps"}):
            raise LudusError(
                f"env_options.{unknown[0]}: an environment that is made already takes max_episode_steps only"
            )
        return partial(_copy, env, options.get("max_episode_steps")), f"object:{type(env.unwrapped).__qualname__}"
    if callable(env):
        return partial(_make_by_call, env, options), f"object:{getattr(env, '__qualname__', env)}"
    raise LudusError(f"env={env!r}: must be an id, a gymnasium.Env, its class, or a ludus Environment")


def return_threshold(name: str) -> float | None:
    """Return the mean return from which on an id is solved, as Gymnasium says or all agree; None if they do not."""
    bare = name.rpartition(":")[2]
    spec = gymnasium.registry.get(bare)
    if spec is None or spec.reward_threshold is None:
        return RETURN_THRESHOLDS.get(bare)
    return float(spec.reward_threshold)


def longest_episode(env: Any, options: dict[str, Any]) -> int | None:
    """Return the limit of steps that episodes have; None if none is known."""
    asked = options.get("max_episode_steps")
    spec = gymnasium.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else None
    if spec is not None:
        return spec.max_episode_steps if asked is None else asked
    limits = [] if asked is None else [asked]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


def step_seconds(make: Callable[[], gymnasium.Env]) -> float | None:
    """Return the median time of a step under random actions, measured on an instance that is closed again.

    None if some actions are forbidden: which random ones are not is the policy's to know.
    """
    env = make()
    try:
        env.action_space.seed(0)
        if MASK in env.reset(seed=0)[1]:
            return None
        seconds: list[float] = []
        while len(seconds) < MEASURED_STEPS and sum(seconds) < MEASURED_SECONDS:
            action = env.action_space.sample()
            began = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            seconds.append(time.perf_counter() - began)
            if terminated or truncated:
                env.reset()
        return statistics.median(seconds)
    finally:
        env.close()


def as_space(space: Any, name: str) -> Space:
    """Translate a Gymnasium space, or refuse it by name."""
    match space:
        case gymnasium.spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case gymnasium.spaces.MultiDiscrete():
            return MultiDiscrete(space.nvec.tolist(), space.start.tolist())
        case gymnasium.spaces.MultiBinary():
            return MultiBinary(space.shape)
        case gymnasium.spaces.Box():
            # Images stay bytes; all other numbers are kept as float32, which is what networks compute in.
            is_kept = space.dtype == np.uint8 or ("action space" in name and space.dtype.kind != "f")
            return Box.from_arrays(space.low, space.high, str(space.dtype) if is_kept else "float32")
        case gymnasium.spaces.Dict():
            return _as_dict(space, name)
        case gymnasium.spaces.Tuple():
            return Tuple([as_space(part, f"{name} {index}:") for index, part in enumerate(space.spaces)])
    raise LudusError(
        f"{name} {type(space).__name__} is not supported; Box, Discrete, MultiDiscrete, MultiBinary, and Dict and "
        "Tuple of them are"
    )


def _as_dict(space: gymnasium.spaces.Dict, name: str) -> Dict:
    """Translate what can be; if a part cannot, say how to leave it out."""
    parts: dict[str, Space] = {}
    refused: list[LudusError] = []
    for key, part in space.spaces.items():
        try:
            parts[str(key)] = as_space(part, f"{name} {key!r}:")
        except LudusError as error:
            refused.append(error)
    if refused:
        hint = ""
        if parts and name.endswith("observation space"):
            wrapper = f"{{name:gymnasium.wrappers:FilterObservation,filter_keys:[{','.join(parts)}]}}"
            hint = f"; leave it out: 'env_wrappers=[{wrapper}]'"
        raise LudusError(f"{refused[0]}{hint}")
    return Dict(list(parts.items()))


def frame_advice(id: str, space: Space) -> Iterator[str]:
    """Yield what to do about frames that networks would see slowly, or not as pictures."""
    for _, leaf in leaves(space):
        if not isinstance(leaf, Box) or leaf.dtype != "uint8":
            continue
        *_, width, height = sorted(leaf.shape) if len(leaf.shape) in (3, 4) else (0, 0)
        shape = " x ".join(map(str, leaf.shape))
        if len(leaf.shape) == 4 and width >= LONG_SIDE:
            wrappers = f"[gymnasium.wrappers:GrayscaleObservation,{STACK}]"
            yield (
                f"{id}: bytes of {shape} are no picture to a network, which will see {math.prod(leaf.shape)} numbers "
                f"in a row; make frames grey before they are stacked: 'env_wrappers={wrappers}'"
            )
        elif width * height > MANY_PIXELS:
            size = "{name:gymnasium.wrappers:ResizeObservation,shape:[84,84]}"
            wrappers = f"'env_wrappers=[gymnasium.wrappers:GrayscaleObservation,{size},{STACK}]'"
            if "ALE/" in id:
                wrappers = f"env_options.frameskip=1 'env_wrappers=[gymnasium.wrappers:AtariPreprocessing,{STACK}]'"
            yield (
                f"{id}: frames of {shape} take {width * height / 84**2:.1f} times as long to learn from as those of 84 "
                f"x 84 that are usual; to have those: {wrappers}"
            )


def known_ids() -> list[str]:
    """Return every id that Gymnasium knows."""
    return list(gymnasium.registry)


def _make_by_id(id: str, options: dict[str, Any], registered: Any) -> gymnasium.Env:
    if ":" in id:
        own_code.imported(id)
    try:
        given = withheld.filled("env_options", options)
        return gymnasium.make(registered or id, disable_env_checker=True, **given)
    except gymnasium.error.DependencyNotInstalled as error:
        raise LudusError(f"env={id}: {error}") from error
    except gymnasium.error.Error as error:
        close = difflib.get_close_matches(id.rpartition(":")[2], known_ids(), 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        if not close and re.search(r"-v\d+$", id) is None:
            hint = "; a name of your own is known where ludus.register_env was called, in Python"
        raise LudusError(f"env={id}: no such environment{hint}") from error
    except Exception as error:  # whatever the environment's own code raises
        if options and isinstance(error, TypeError | ValueError | AssertionError):
            raise LudusError(f"env_options={options}: {id} does not take them ({_reason(error)})") from error
        raise LudusError(f"env={id}: cannot be made ({_reason(error)})") from error


def _wrapped(make: Callable[[], gymnasium.Env], wrappers: Sequence[tuple[str, dict[str, Any]]]) -> gymnasium.Env:
    env = make()
    for name, arguments in wrappers:
        wrap = own_code.load(name)
        # A command line or a file has lists alone, and Gymnasium asks for tuples, as in ResizeObservation's shape.
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
        given = withheld.filled("env_wrappers", given)
        try:
            env = wrap(env, **given)
        except Exception as error:  # whatever the wrapper's own code raises
            raise LudusError(f"env_wrappers: {name} cannot be put around {env} ({_reason(error)})") from error
        if not isinstance(env, gymnasium.Env):
            raise LudusError(f"env_wrappers: {name} must return a gymnasium.Env, got {type(env).__name__}")
    return env


def _reason(error: Exception) -> str:
    """Return an exception in one line; one without words by the line of code that raised it."""
    if str(error).strip():
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {frame.line}"


def _check_version(id: str) -> None:
    """Refuse an id without a version, for which Gymnasium would take whatever is the latest by now."""
    if id in gymnasium.registry:
        return
    stem = f"{id}-v"
    versions = [int(known.removeprefix(stem)) for known in known_ids() if re.fullmatch(rf"{re.escape(stem)}\d+", known)]
    if versions:
        raise LudusError(f"env={id}: names no version; did you mean {stem}{max(versions)}?")


def _make_by_call(make: Callable[..., Any], options: dict[str, Any]) -> gymnasium.Env:
    env = make(**withheld.filled("env_options", options))
    if not isinstance(env, gymnasium.Env):
        raise LudusError(f"env: expected a gymnasium.Env, got {type(env).__name__}")
    return env


def _copy(env: gymnasium.Env, max_episode_steps: int | None) -> gymnasium.Env:
    try:
        made = copy.deepcopy(env)
        return made if max_episode_steps is None else gymnasium.wrappers.TimeLimit(made, max_episode_steps)
    except Exception as error:  # whatever a user's object raises when copied
        raise LudusError(f"env: {type(env).__name__} cannot be copied ({error}); pass its class instead") from error


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


def _native_leaves(space: Any) -> Iterator[Any]:
    """Yield the spaces that hold arrays, in the order of `ludus.spaces.leaves`."""
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        is_dict = isinstance(space, gymnasium.spaces.Dict)
        for part in (space[key] for key in sorted(space.spaces)) if is_dict else space.spaces:
            yield from _native_leaves(part)
    else:
        yield space


def _native_rows(space: Any, action: np.ndarray) -> Any:
    """Return actions `[n, ...]` in an environment's own type, without leaving its bounds by rounding."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return action.tolist()
    if space.dtype == action.dtype:
        return action
    action = action.astype(space.dtype)
    return np.clip(action, space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else action
