"""Single Gymnasium environments, made from an id, an instance, a class or a function, in their wrappers.

Besides its two siblings, this is the only file that imports Gymnasium.
"""

import copy
import difflib
import inspect
import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from ludus.envs.host.observation_buffer import MASK
from ludus.envs.names import spelling
from ludus.envs.user_env import called, failure, reason
from ludus.runtime import secrets, user_code
from ludus.types import LudusError

MEASURED_STEPS, MEASURED_SECONDS = 64, 0.5
"""Steps that `step_seconds` takes, fewer if they last longer than so many seconds."""

RETURN_THRESHOLDS = {"Pendulum-v1": -200.0}
"""Mean returns from which on tasks count as solved of which Gymnasium does not say it."""

LIMIT = "max_episode_steps"

Make = Callable[[], gymnasium.Env]
Wrappers = Sequence[tuple[str, dict[str, Any]]]
"""The name of each wrapper, a `module:Name`, and its arguments; the innermost first."""


def factory(env: object, options: dict[str, Any], wrappers: Wrappers = (), id: str | None = None) -> tuple[Make, str]:
    """Return a function that makes one environment, in this process or in another, and the id that it will have.

    `id` is the name of a user's own class, function or instance, if it has one. The modules that an id such as
    `module:Id` and wrappers name must have been imported.
    """
    make, id = _bare_factory(env, options, id)
    return partial(_wrapped, make, tuple(map(tuple, wrappers))) if wrappers else make, id


def _bare_factory(env: object, options: dict[str, Any], id: str | None) -> tuple[Make, str]:
    if isinstance(env, str):
        name = env.rpartition(":")[2]
        _check_version(name)
        # With what is registered under the id: a worker process has not run the user's registrations.
        return partial(_make_by_id, env, options, gymnasium.registry.get(name)), f"gym:{env}"
    if isinstance(env, gymnasium.Env):
        if unknown := sorted(options.keys() - {LIMIT}):
            raise LudusError(f"env_options.{unknown[0]}: an environment that is made already takes {LIMIT} only")
        return partial(_copy, env, options.get(LIMIT)), id or f"object:{type(env.unwrapped).__qualname__}"
    if callable(env):
        id = id or f"object:{getattr(env, '__qualname__', env)}"
        return partial(_make_by_call, env, id, options), id
    raise LudusError(f"env={id or repr(env)}: must be an id, a gymnasium.Env, its class, or a ludus Environment")


def return_threshold(name: str) -> float | None:
    """Return the mean return from which on an id is solved, as Gymnasium says or all agree; None if they do not."""
    bare = name.rpartition(":")[2]
    spec = gymnasium.registry.get(bare)
    if spec is None or spec.reward_threshold is None:
        return RETURN_THRESHOLDS.get(bare)
    return float(spec.reward_threshold)


def longest_episode(env: object, options: dict[str, Any]) -> int | None:
    """Return the limit of steps that episodes have; None if none is known."""
    asked = options.get(LIMIT)
    spec = gymnasium.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else None
    if spec is not None:
        return spec.max_episode_steps if asked is None else asked
    limits = [] if asked is None else [asked]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


def step_seconds(make: Make) -> float | None:
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


def _make_by_id(id: str, options: dict[str, Any], registered: Any) -> gymnasium.Env:
    if ":" in id:
        user_code.imported(id)
    try:
        given = secrets.filled("env_options", options)
        return gymnasium.make(registered or id, disable_env_checker=True, **given)
    except gymnasium.error.DependencyNotInstalled as error:
        raise LudusError(f"env={id}: {error}") from error
    except gymnasium.error.Error as error:
        raise LudusError(f"env={id}: no such environment{_hint(id)}") from error
    except Exception as error:  # whatever the environment's own code raises
        raise failure(id, options, error) from error


def _hint(id: str) -> str:
    """Return what might have been meant by an id that Gymnasium does not know."""
    module, _, name = id.rpartition(":")
    if close := difflib.get_close_matches(name, gymnasium.registry, 3):
        return f"; did you mean {' or '.join(close)}?"
    if module and user_code.holds(id):
        return f"; {module} has registered no such id, but your own {name} in it is written {id}, without gym:"
    if re.search(r"-v\d+$", name):
        return ""
    return (
        "; a name of your own is known where ludus.register_env was called, in Python; your own class or function is "
        f"written {spelling(id)}"
    )


def _make_by_call(make: Callable[..., object], id: str, options: dict[str, Any]) -> gymnasium.Env:
    """Call a class or a function with the options; if it takes no time limit, that goes around what it returns."""
    given = dict(options)
    limit = None if _takes(make, LIMIT) else given.pop(LIMIT, None)
    env = called(make, id, given)
    if not isinstance(env, gymnasium.Env):
        raise LudusError(f"env={id}: must be or return a gymnasium.Env or a ludus.Environment, got {_kind(env)}")
    return _limited(env, limit)


def _takes(function: Callable[..., object], name: str) -> bool:
    """Say whether a function has an argument of this name; one that does not say what it takes may have any."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _kind(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__


def _limited(env: gymnasium.Env, max_episode_steps: int | None) -> gymnasium.Env:
    if max_episode_steps is None:
        return env
    if isinstance(max_episode_steps, bool) or not isinstance(max_episode_steps, int) or max_episode_steps < 1:
        raise LudusError(f"env_options.{LIMIT}={max_episode_steps}: must be an integer of at least 1")
    return gymnasium.wrappers.TimeLimit(env, max_episode_steps)


def _copy(env: gymnasium.Env, max_episode_steps: int | None) -> gymnasium.Env:
    try:
        made = copy.deepcopy(env)
    except Exception as error:  # whatever a user's object raises when copied
        raise LudusError(f"env: {type(env).__name__} cannot be copied ({error}); pass its class instead") from error
    return _limited(made, max_episode_steps)


def _wrapped(make: Make, wrappers: Wrappers) -> gymnasium.Env:
    env = make()
    for name, arguments in wrappers:
        wrap = user_code.load(name)
        # A command line or a file has lists alone, and Gymnasium asks for tuples, as in ResizeObservation's shape.
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
        given = secrets.filled("env_wrappers", given)
        try:
            env = wrap(env, **given)
        except Exception as error:  # whatever the wrapper's own code raises
            raise LudusError(f"env_wrappers: {name} cannot be put around {env} ({reason(error)})") from error
        if not isinstance(env, gymnasium.Env):
            raise LudusError(f"env_wrappers: {name} must return a gymnasium.Env, got {type(env).__name__}")
    return env


def _check_version(id: str) -> None:
    """Refuse an id without a version, for which Gymnasium would take whatever is the latest by now."""
    if id in gymnasium.registry:
        return
    stem = f"{id}-v"
    known = [name.removeprefix(stem) for name in gymnasium.registry if name.startswith(stem)]
    versions = [int(version) for version in known if re.fullmatch(r"\d+", version)]
    if versions:
        raise LudusError(f"env={id}: names no version; did you mean {stem}{max(versions)}?")
