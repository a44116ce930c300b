"""Environments by name: a prefix picks the library; without one, the fastest backend that is faithful to the id."""

import difflib
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from numbers import Integral
from typing import Any

from ludus.envs.base import Environment, HostEnv, check_environment
from ludus.envs.classic import CLASSIC
from ludus.envs.vector import VectorEnv
from ludus.types import LudusError

LIBRARIES = ("jax", "gym")

_registered: dict[str, Callable[..., Any]] = {}


def register_env(name: str, make: Callable[..., Any]) -> None:
    """Give an environment a name for `make_env`, in this process.

    Args:
        name: what `env=` will be; it may not contain a colon.
        make: a class or function that returns a `ludus.Environment` or a `gymnasium.Env`; it is called with the
            options given to `make_env`.
    """
    if ":" in name or not name:
        raise LudusError(f"register_env: name={name!r} may not be empty or contain a colon")
    if not callable(make):
        raise LudusError(f"register_env: make={make!r} must be a class or a function that returns an environment")
    _registered[name] = make


def make_env(env: Any, num_envs: int = 1, **options: Any) -> VectorEnv | HostEnv:
    """Make a batch of environments.

    Args:
        env: an id such as "CartPole-v1", with "jax:" or "gym:" before it to pick the library; a registered name; a
            `ludus.Environment`; or a `gymnasium.Env` class or instance.
        num_envs: how many copies run side by side.
        **options: handed to the environment.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, Integral) or num_envs < 1:
        raise LudusError(f"num_envs={num_envs}: must be an integer of at least 1")
    num_envs = int(num_envs)
    if not isinstance(env, str):
        return _from_object(env, num_envs, options, None)
    library, _, name = env.rpartition(":")
    if library and library not in LIBRARIES:
        raise LudusError(f"env={env}: no library {library!r}; prefixes are {', '.join(p + ':' for p in LIBRARIES)}")
    if name in _registered:
        return _from_object(_registered[name], num_envs, options, name)
    if library != "gym" and name in CLASSIC:
        return _native(name, num_envs, options)
    if library == "jax":
        raise LudusError(f"env={env}: no such native environment{_hint(name, [*CLASSIC, *_registered])}")
    return _gymnasium(name, num_envs, options)


def _native(name: str, num_envs: int, options: dict[str, Any]) -> VectorEnv:
    try:
        return _vector(CLASSIC[name], num_envs, f"jax:{name}", options)
    except TypeError as error:
        raise LudusError(f"env_options={options}: jax:{name} does not take them ({error})") from error


def _vector(make: Callable[..., Environment], num_envs: int, id: str, options: dict[str, Any]) -> VectorEnv:
    """Make a batch; the time limit is the batch's, all other options are the environment's."""
    rest = {name: value for name, value in options.items() if name != "max_episode_steps"}
    limit = options.get("max_episode_steps")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise LudusError(f"env_options.max_episode_steps={limit}: must be an integer of at least 1")
    env = make(**rest)
    _check_options(env, rest)
    check_environment(env, id)
    return VectorEnv(env, num_envs, id, limit, tuple(options.items()))


def _check_options(env: Environment, options: dict[str, Any]) -> None:
    """Refuse a value of another type than the environment's own default has, before anything is traced with it."""
    defaults = {field.name: field.default for field in fields(env)} if is_dataclass(env) else {}
    for name, value in options.items():
        default = defaults.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, float) and not (number and math.isfinite(value)):
            raise LudusError(f"env_options.{name}={value!r}: must be a finite number (its default is {default})")


def _from_object(env: Any, num_envs: int, options: dict[str, Any], name: str | None) -> VectorEnv | HostEnv:
    if isinstance(env, Environment):
        return _vector(lambda: env, num_envs, f"object:{type(env).__qualname__}", options)
    if isinstance(env, type) and issubclass(env, Environment):
        return _vector(env, num_envs, f"jax:{name}" if name else f"object:{env.__qualname__}", options)
    if name is not None and not isinstance(env, type):  # a registered function: only its answer tells
        rest = {key: value for key, value in options.items() if key != "max_episode_steps"}
        made = env(**rest)
        if isinstance(made, Environment):
            return _vector(lambda **_: made, num_envs, f"jax:{name}", options)
        made.close()
    from ludus.envs.gymnasium import make_gymnasium

    batch = make_gymnasium(env, num_envs, options)
    batch.id = f"gym:{name}" if name else batch.id
    return batch


def _gymnasium(name: str, num_envs: int, options: dict[str, Any]) -> HostEnv:
    try:
        from ludus.envs.gymnasium import make_gymnasium
    except ImportError as error:
        raise LudusError(f"env={name}: needs Gymnasium (pip install gymnasium)") from error
    return make_gymnasium(name, num_envs, options)


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
