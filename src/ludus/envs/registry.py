"""Environments by name: a prefix picks the library; without one, the fastest backend that is faithful to the id."""

import difflib
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from numbers import Integral
from typing import Any, NamedTuple

from ludus import own_code, withheld
from ludus.envs.base import Environment, HostEnv, check_environment
from ludus.envs.classic import CLASSIC
from ludus.envs.vector import VectorEnv
from ludus.envs.workers import WorkerEnv, WorkerOptions, is_from_script, sendable, workers_that_pay
from ludus.types import LudusError

LIBRARIES = ("jax", "gym", "envpool")
FAITHFUL_IN_ENVPOOL = frozenset(
    ("BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "Swimmer-v5", "Walker2d-v5")
)
"""Gymnasium's ids whose environments in EnvPool were shown to be the same; docs/en/envpool.md says how."""
WORKER_KEYS = ("num_workers", "worker_timeout", "on_worker_fault")
"""What `make_env` takes besides the environment's own options and wrappers."""

_log = logging.getLogger(__name__)

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


def make_env(
    env: Any,
    num_envs: int = 1,
    *,
    num_workers: int | str = 0,
    worker_timeout: float = 5.0,
    on_worker_fault: str = "restart",
    env_wrappers: Sequence[str | dict[str, Any]] = (),
    **options: Any,
) -> VectorEnv | HostEnv:
    """Make a batch of environments.

    Args:
        env: an id such as "CartPole-v1", with "jax:", "gym:" or "envpool:" before it to pick the library; an id of a
            Gymnasium package with the module that registers it, as in "gym:highway_env:highway-fast-v0"; a registered
            name; a `ludus.Environment`; or a `gymnasium.Env` class or instance.
        num_envs: how many copies run side by side.
        num_workers: processes that Gymnasium environments are spread over; 0 steps them in this process, "auto"
            measures a few steps and takes what is faster.
        worker_timeout: seconds that one environment may take for one step or reset before its worker is at fault.
        on_worker_fault: "restart" replaces a worker that raises, dies or hangs and drops its running episodes; "stop"
            raises instead.
        env_wrappers: wrappers to put around a Gymnasium environment, the first one innermost: each a text such as
            "gymnasium.wrappers:FlattenObservation", or a dict with that as `name` and its arguments besides.
        **options: handed to the environment. A secret is given as "${oc.env:NAME}", the variable that holds it.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, Integral) or num_envs < 1:
        raise LudusError(f"num_envs={num_envs}: must be an integer of at least 1")
    workers = _Workers(num_workers, worker_timeout, on_worker_fault, as_wrappers(env_wrappers))
    workers.check(int(num_envs))
    withheld.filled("env_options", options)  # all are there, and this process knows what not to write down
    withheld.filled("env_wrappers", [wrapper.arguments for wrapper in workers.wrappers])
    batch = _make(env, int(num_envs), options, workers)
    if workers.wrappers and not hasattr(batch, "env_wrappers"):
        batch.close()
        raise LudusError(f"env_wrappers: {batch.id} takes none; they are for Gymnasium's environments, as gym:... is")
    if isinstance(num_workers, int) and num_workers and not getattr(batch, "num_workers", 0):
        batch.close()
        raise LudusError(f"num_workers={num_workers}: {batch.id} does not step in worker processes; leave it out")
    return batch


class Wrapper(NamedTuple):
    """A wrapper by name, and its arguments."""

    name: str
    arguments: dict[str, Any]

    @property
    def plain(self) -> str | dict[str, Any]:
        """It as a configuration holds it."""
        return {"name": self.name, **self.arguments} if self.arguments else self.name


def as_wrappers(given: Any) -> list[Wrapper]:
    """Read what a user or a configuration says of wrappers."""
    if isinstance(given, str | dict) or not isinstance(given, Sequence):
        raise LudusError(f"env_wrappers={given}: must be a list, as in [gymnasium.wrappers:FlattenObservation]")
    wrappers = []
    for entry in given:
        words = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, dict) else {}
        name = words.pop("name", None)
        if not isinstance(name, str) or ":" not in name or not all(isinstance(word, str) for word in words):
            raise LudusError(
                f"env_wrappers: {entry!r} must be module:Name, or {{name: module:Name, argument: value}} with arguments"
            )
        wrappers.append(Wrapper(name, words))
    return wrappers


def code_in(env: Any, wrappers: Sequence[Wrapper]) -> list[str]:
    """Return the names of code, each a `module:Name`, that an id and wrappers hold."""
    library, name = _split(env) if isinstance(env, str) else ("", "")
    own = [name] if library == "gym" and ":" in name else []
    return own + [wrapper.name for wrapper in wrappers]


class _Workers(NamedTuple):
    """What was asked about how Gymnasium's environments are run: in worker processes, and in which wrappers."""

    count: int | str
    timeout: float
    on_fault: Any
    wrappers: list[Wrapper]

    def check(self, num_envs: int) -> None:
        """Refuse what cannot be, before any environment is made."""
        if self.count != "auto" and (isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0):
            raise LudusError(f"num_workers={self.count}: must be auto or an integer of at least 0")
        if isinstance(self.count, int) and self.count > num_envs:
            raise LudusError(f"num_workers={self.count}: more workers than environments (num_envs={num_envs})")
        WorkerOptions(self.timeout, self.on_fault).check()


def _make(env: Any, num_envs: int, options: dict[str, Any], workers: _Workers) -> VectorEnv | HostEnv:
    if not isinstance(env, str):
        return _from_object(env, num_envs, options, None, workers)
    library, name = _split(env)
    if name in _registered and library != "envpool":
        return _from_object(_registered[name], num_envs, options, name, workers)
    if library in ("", "jax") and name in CLASSIC and not (workers.wrappers and not library):
        return _native(name, num_envs, options)
    if library == "jax":
        raise LudusError(f"env={env}: no such native environment{_hint(name, [*CLASSIC, *_registered])}")
    if library == "envpool" or (not library and _is_for_envpool(name, options, workers)):
        return _envpool(name, num_envs, options)
    return _gymnasium(name, num_envs, options, workers)


def _split(env: str) -> tuple[str, str]:
    """Return the library that a prefix picks, if there is one, and the id in it; that may hold a colon of its own."""
    library, colon, name = env.partition(":")
    if not colon:
        return "", env
    if library not in LIBRARIES:
        prefixes = ", ".join(f"{prefix}:" for prefix in LIBRARIES)
        raise LudusError(
            f"env={env}: no library {library!r}; prefixes are {prefixes}; an id that a module registers with Gymnasium "
            f"is written gym:{env}"
        )
    return library, name


def _native(name: str, num_envs: int, options: dict[str, Any]) -> VectorEnv:
    try:
        return _vector(CLASSIC[name], num_envs, f"jax:{name}", options)
    except TypeError as error:
        raise LudusError(f"env_options={options}: jax:{name} does not take them ({error})") from error


def _vector(make: Callable[..., Environment], num_envs: int, id: str, options: dict[str, Any]) -> VectorEnv:
    """Make a batch; the time limit is the batch's, all other options are the environment's."""
    rest = {name: value for name, value in options.items() if name != "max_episode_steps"}
    rest = withheld.filled("env_options", rest)
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


def _from_object(
    env: Any, num_envs: int, options: dict[str, Any], name: str | None, workers: _Workers
) -> VectorEnv | HostEnv:
    if isinstance(env, Environment):
        return _vector(lambda: env, num_envs, f"object:{type(env).__qualname__}", options)
    if isinstance(env, type) and issubclass(env, Environment):
        return _vector(env, num_envs, f"jax:{name}" if name else f"object:{env.__qualname__}", options)
    if name is not None and not isinstance(env, type):  # a registered function: only its answer tells
        rest = {key: value for key, value in options.items() if key != "max_episode_steps"}
        made = env(**withheld.filled("env_options", rest))
        if isinstance(made, Environment):
            return _vector(lambda **_: made, num_envs, f"jax:{name}", options)
        made.close()
    return _gymnasium(env, num_envs, options, workers, name)


def _gymnasium(env: Any, num_envs: int, options: dict[str, Any], workers: _Workers, name: str | None = None) -> HostEnv:
    """Make a batch in this process or in workers; `name` is what a user's own environment is registered under."""
    try:
        from ludus.envs.gymnasium import GymnasiumEnv, frame_advice, longest_episode, recipe, return_threshold
    except ImportError as error:
        raise LudusError(f"env={env}: needs Gymnasium (pip install gymnasium)") from error
    for code in code_in(f"gym:{env}" if isinstance(env, str) else None, workers.wrappers):
        own_code.imported(code)
    make, id = recipe(env, options, workers.wrappers)
    id = f"gym:{name}" if name else id
    count, placement = _settled(workers.count, make, num_envs, id)
    if count == 0:
        batch = GymnasiumEnv(make, num_envs, id, options)
        batch.placement = placement
    else:
        faults = WorkerOptions(workers.timeout, workers.on_fault)
        batch = WorkerEnv(make, num_envs, id, options, count, faults, placement)
    batch.return_threshold = return_threshold(env) if isinstance(env, str) else None
    batch.max_episode_steps = longest_episode(env, options)
    batch.env_wrappers = tuple(wrapper.plain for wrapper in workers.wrappers)
    for advice in frame_advice(batch.id, batch.observation_space):
        _log.warning(advice)
    return batch


def _is_for_envpool(name: str, options: dict[str, Any], workers: _Workers) -> bool:
    """Whether EnvPool is there and gives what the id means; with options that it may not have, Gymnasium does."""
    asked_elsewise = workers.count not in (0, "auto") or workers.wrappers or options.keys() - {"max_episode_steps"}
    return name in FAITHFUL_IN_ENVPOOL and not asked_elsewise and find_spec("envpool") is not None


def _envpool(name: str, num_envs: int, options: dict[str, Any]) -> HostEnv:
    try:
        from ludus.envs.envpool import make_envpool
    except ImportError as error:
        raise LudusError(f'env=envpool:{name}: needs EnvPool (pip install "ludus[envpool]")') from error
    except OSError as error:  # EnvPool lists its assets while it is imported
        raise LudusError(f'env=envpool:{name}: EnvPool lacks its assets (pip install "ludus[envpool]")') from error
    return make_envpool(name, num_envs, options)


def _settled(count: int | str, make: Callable[[], Any], num_envs: int, id: str) -> tuple[int, str]:
    """Return how many workers there shall be and, in words, why."""
    if isinstance(count, int):
        return count, f"{count} workers" if count else ""
    if num_envs == 1:
        return 0, ""
    from ludus.envs.gymnasium import step_seconds

    try:
        if is_from_script(sendable(make, id)):
            return 0, "in this process (its class is in the script itself)"
    except LudusError:
        return 0, "in this process (it cannot be sent to workers)"
    seconds = step_seconds(make)
    if seconds is None:
        return 0, "in this process (not measured: some actions are forbidden)"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    best = workers_that_pay(seconds, num_envs, cores)
    return best, f"{f'{best} workers' if best else 'in this process'} ({1e6 * seconds:.0f} µs a step)"


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
