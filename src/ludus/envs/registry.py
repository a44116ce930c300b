"""Environments by name: a prefix picks the library; without one, the fastest backend that is faithful to the id."""

import difflib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from numbers import Integral
from typing import Any, NamedTuple

from ludus.envs import user_env
from ludus.envs.base import Environment, HostEnv
from ludus.envs.batch import JaxEnv
from ludus.envs.checks import check_environment, check_scenarios
from ludus.envs.names import OWN, Wrapper, as_wrappers, code_in, parsed
from ludus.envs.native.classic_control import CLASSIC
from ludus.envs.native.memory_tasks import MEMORY_TASKS
from ludus.envs.native.targets import TARGETS
from ludus.envs.scenarios.driving.environment import Driving
from ludus.envs.scenarios.options import arranged, source_of, taken
from ludus.envs.sequence.tasks import SEQUENCE_TASKS
from ludus.envs.workers.supervisor import WorkerEnv, WorkerOptions
from ludus.runtime import secrets, user_code
from ludus.types import LudusError

FAITHFUL_IN_ENVPOOL = frozenset(
    ("BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "Swimmer-v5", "Walker2d-v5")
)
"""Gymnasium's ids whose environments in EnvPool were shown to be the same; docs/en/envpool.md says how."""
WORKER_KEYS = ("num_workers", "worker_timeout", "on_worker_fault")
"""The keys about workers: `make_env` takes them besides the environment's own options and wrappers."""
NATIVE: dict[str, Callable[..., Environment]] = {
    **CLASSIC,
    **MEMORY_TASKS,
    **SEQUENCE_TASKS,
    **TARGETS,
    "driving": Driving,
}
"""Our own environments, by id."""

_log = logging.getLogger(__name__)

_registered: dict[str, Callable[..., Any]] = {}


def register_env(name: str, make: Callable[..., Any]) -> None:
    """Give an environment a name for `make_env`, in this process.

    Args:
        name: what `env=` will be, without a colon; another class or function may not have it.
        make: a class or function that returns a `ludus.Environment` or a `gymnasium.Env`; it is called with the
            options given to `make_env`.
    """
    user_code.enter(_registered, name, make, "register_env")


def make_env(
    env: object,
    num_envs: int = 1,
    *,
    num_workers: int | str = 0,
    worker_timeout: float = 5.0,
    on_worker_fault: str = "restart",
    env_wrappers: Sequence[str | dict[str, Any]] = (),
    **options: Any,
) -> JaxEnv | HostEnv:
    """Make a batch of environments.

    Args:
        env: an id such as "CartPole-v1", with "jax:", "gym:" or "envpool:" before it to pick the library; an id of a
            Gymnasium package with the module that registers it, as in "gym:highway_env:highway-fast-v0"; your own code
            as "my_module:MyEnv"; a registered name; a `ludus.Environment`; or a `gymnasium.Env` class or instance.
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
    asked = _Asked(int(num_envs), options, num_workers, worker_timeout, on_worker_fault, as_wrappers(env_wrappers))
    asked.check()
    batch = _make(env, asked)
    if asked.wrappers and not batch.env_wrappers:
        batch.close()
        raise LudusError(f"env_wrappers: {batch.id} takes none; they are for Gymnasium's environments, as gym:... is")
    if isinstance(num_workers, int) and num_workers and not batch.worker_settings["num_workers"]:
        batch.close()
        raise LudusError(f"num_workers={num_workers}: {batch.id} does not step in worker processes; leave it out")
    return batch


class _Asked(NamedTuple):
    """The arguments of `make_env` besides the environment."""

    num_envs: int
    options: dict[str, Any]
    num_workers: int | str
    timeout: float
    on_fault: Any
    wrappers: list[Wrapper]

    def check(self) -> None:
        """Refuse what cannot be, before any environment is made."""
        count = self.num_workers
        if count != "auto" and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise LudusError(f"num_workers={count}: must be auto or an integer of at least 0")
        if isinstance(count, int) and count > self.num_envs:
            raise LudusError(f"num_workers={count}: more workers than environments (num_envs={self.num_envs})")
        WorkerOptions(self.timeout, self.on_fault).check()
        secrets.filled("env_options", self.options)  # all are there, and this process knows what not to write down
        secrets.filled("env_wrappers", [wrapper.arguments for wrapper in self.wrappers])


def _make(env: object, asked: _Asked) -> JaxEnv | HostEnv:
    if not isinstance(env, str):
        return _from_object(env, asked)
    library, name = parsed(env)
    if library == OWN:
        return _from_code(user_env.find(env, _registered), env, asked)
    if name in _registered and library != "envpool":
        return _from_code(_registered[name], name, asked)
    if library in ("", "jax") and name in NATIVE and not (asked.wrappers and not library):
        return _jax(NATIVE[name], f"jax:{name}", asked)
    if library == "jax":
        raise LudusError(f"env={env}: no such native environment{_hint(name, [*NATIVE, *_registered])}")
    if library == "envpool" or (not library and _is_for_envpool(name, asked)):
        return _envpool(name, asked)
    return _gymnasium(name, asked)


def _from_object(env: object, asked: _Asked) -> JaxEnv | HostEnv:
    """Make a batch of what was passed in Python."""
    if isinstance(env, Environment):
        return _jax(lambda: env, f"object:{type(env).__qualname__}", asked)
    if isinstance(env, type) and issubclass(env, Environment):
        return _jax(env, f"object:{env.__qualname__}", asked)
    return _gymnasium(env, asked)


def _from_code(env: object, name: str, asked: _Asked) -> JaxEnv | HostEnv:
    """Make a batch of what has a name: a `module:Name`, or a name that was registered."""
    in_jax, in_python = (name, name) if ":" in name else (f"jax:{name}", f"gym:{name}")
    if isinstance(env, Environment):
        return _jax(lambda: env, in_jax, asked)
    if isinstance(env, type) and issubclass(env, Environment):
        return _jax(env, in_jax, asked)
    if callable(env) and not isinstance(env, type):  # a function: only its answer tells
        made = user_env.called(
            env, name, {key: value for key, value in asked.options.items() if key != "max_episode_steps"}
        )
        if isinstance(made, Environment):
            return _jax(lambda **_: made, in_jax, asked)
        if hasattr(made, "close"):
            made.close()
    return _gymnasium(env, asked, in_python)


def _jax(make: Callable[..., Environment], id: str, asked: _Asked) -> JaxEnv:
    """Make a batch; the time limit is the batch's, scenarios are drawn for it, all other options are its own."""
    about, own = taken(secrets.filled("env_options", asked.options))
    rest = {name: asked.options[name] for name in own if name != "max_episode_steps"}
    limit = asked.options.get("max_episode_steps")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise LudusError(f"env_options.max_episode_steps={limit}: must be an integer of at least 1")
    env = user_env.called(make, id, rest)
    _check_options(env, secrets.filled("env_options", rest))
    check_scenarios(env, id)
    check_environment(env, id)
    env, stored = arranged(env, id, about)
    batch = JaxEnv(env, asked.num_envs, id, limit, tuple(asked.options.items()), stored)
    return batch if stored is None else replace(batch, source=source_of(env, id, stored, about, batch.info_names))


def _check_options(env: Environment, options: dict[str, Any]) -> None:
    """Refuse a value of another type than the environment's own default has, before anything is traced with it."""
    defaults = {field.name: field.default for field in fields(env)} if is_dataclass(env) else {}
    for name, value in options.items():
        default = defaults.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, float) and not (number and math.isfinite(value)):
            raise LudusError(f"env_options.{name}={value!r}: must be a finite number (its default is {default})")


def _gymnasium(env: object, asked: _Asked, name: str | None = None) -> HostEnv:
    """Make a batch in this process or in workers; `name` is that of a user's own environment."""
    try:
        from ludus.envs.adapters.gymnasium import GymnasiumEnv
        from ludus.envs.adapters.gymnasium_factory import factory, longest_episode, return_threshold
        from ludus.envs.adapters.gymnasium_spaces import frame_advice
        from ludus.envs.workers.placement import placed
    except ImportError as error:
        raise LudusError(f"env={name or env}: needs Gymnasium (pip install gymnasium)") from error
    for code in code_in(f"gym:{env}" if isinstance(env, str) else None, asked.wrappers):
        user_code.imported(code)
    if isinstance(asked.options.get("randomize"), dict):
        raise LudusError(
            f"env_options.randomize: {name or f'gym:{env}'} is not written in JAX, and cannot be randomised"
        )
    make, id = factory(env, asked.options, asked.wrappers, name)
    count, placement = placed(asked.num_workers, make, asked.num_envs, id)
    if count == 0:
        batch: HostEnv = GymnasiumEnv(make, asked.num_envs, id, asked.options)
    else:
        faults = WorkerOptions(asked.timeout, asked.on_fault)
        batch = WorkerEnv(make, asked.num_envs, id, asked.options, count, faults)
    batch.placement = placement
    batch.return_threshold = return_threshold(env) if isinstance(env, str) else None
    batch.max_episode_steps = longest_episode(env, asked.options)
    batch.env_wrappers = tuple(wrapper.plain for wrapper in asked.wrappers)
    for advice in frame_advice(batch.id, batch.observation_space):
        _log.warning(advice)
    return batch


def _is_for_envpool(name: str, asked: _Asked) -> bool:
    """Say whether EnvPool is there and gives what the id means; with options that it may not have, Gymnasium does."""
    is_special = asked.num_workers not in (0, "auto") or asked.wrappers or asked.options.keys() - {"max_episode_steps"}
    return name in FAITHFUL_IN_ENVPOOL and not is_special and find_spec("envpool") is not None


def _envpool(name: str, asked: _Asked) -> HostEnv:
    try:
        from ludus.envs.adapters.envpool import make_envpool
    except ImportError as error:
        raise LudusError(f'env=envpool:{name}: needs EnvPool (pip install "ludus[envpool]")') from error
    except OSError as error:  # EnvPool lists its assets while it is imported
        raise LudusError(f'env=envpool:{name}: EnvPool lacks its assets (pip install "ludus[envpool]")') from error
    return make_envpool(name, asked.num_envs, asked.options)


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
