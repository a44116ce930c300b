"""What an algorithm is: a frozen dataclass of hyperparameters with a few pure functions.

    state                   = algorithm.init(key, spec)
    state                   = algorithm.blank(spec)
    policy                  = algorithm.policy(state)
    critic                  = algorithm.critic(state)
    memory                  = algorithm.initial_memory(policy, n)
    noise                   = algorithm.noise(policy, key, shape)
    memory, action, extras  = algorithm.act(policy, memory, obs, noise, mode)
    memory, distribution    = algorithm.decide(policy, memory, obs)
    memory, value           = algorithm.value(critic, memory, obs, action)
    state, metrics          = algorithm.update(state, rollout, key)
    figures                 = algorithm.health(old, new, gradient, rollout)

Everything but `init` may be called inside `jax.jit`. The algorithm itself is a pytree: hyperparameters made with
`traced` are leaves, so changing one compiles nothing; those made with `static` shape the program.
"""

import dataclasses
import math
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from ludus.rows import Figures
from ludus.types import LudusError, Mode, Rollout, Spec


class Algorithm(Protocol):
    """The protocol. `PPO` is the implementation to read."""

    values_actions: ClassVar[bool]
    """Whether its critic judges an observation together with an action."""
    is_on_policy: ClassVar[bool]
    """Whether it learns from each rollout alone, so that rollouts may be of different lengths."""

    def init(self, key: jax.Array, spec: Spec) -> Any:
        """Return the learner's whole state: networks, optimiser, normalisers, replay."""
        ...

    def blank(self, spec: Spec) -> Any:
        """Return a state whose `policy` and `critic` have the right shapes; the rest of it may be smaller than real."""
        ...

    def policy(self, state: Any) -> Any:
        """Return the part of the state that acting needs, and no more."""
        ...

    def critic(self, state: Any) -> Any:
        """Return the part of the state that valuing needs, and no more."""
        ...

    def initial_memory(self, policy: Any, n: int) -> Any:
        """Return a policy's or critic's memory at the start of `n` episodes; `()` if it has none."""
        ...

    def noise(self, policy: Any, key: jax.Array, shape: tuple[int, ...]) -> Any:
        """Draw what exploration needs for `shape` actions: arrays `[*shape, ...]`, for a whole rollout at once."""
        ...

    def act(self, policy: Any, memory: Any, obs: Any, noise: Any, mode: Mode) -> tuple[Any, Any, Any]:
        """Choose actions for a batch `[n, ...]`: new memory, actions for the environment, extras for `update`.

        `noise` is one row `[n, ...]` of what `noise` drew; in greedy mode it is None. To sample is to explore without
        anything that only training does, such as SAC's warm-up.
        """
        ...

    def decide(self, policy: Any, memory: Any, obs: Any) -> tuple[Any, Any]:
        """Return the new memory and the distribution that `act` chooses from."""
        ...

    def value(self, critic: Any, memory: Any, obs: Any, action: Any) -> tuple[Any, jax.Array]:
        """Value a batch `[n, ...]` in units of the environment's rewards; `action` is None unless `values_actions`."""
        ...

    def update(self, state: Any, rollout: Rollout, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """Learn from one rollout.

        `metrics` holds float scalars under documented names, `updates` (gradient steps made), `fault` (0, or an index
        into `faults.FAULTS`) and `gradient`, which is for `health` alone: that of the last gradient step, before any
        clipping, NaN if there was none. Where there is a fault, the returned state is the one that was given.
        """
        ...

    def health(self, old: Any, new: Any, gradient: Any, rollout: Rollout) -> Figures:
        """Return how an update went, from the states before and after it: floats, and histograms as vectors.

        The names are those of `learning.health`, and so is the mathematics.
        """
        ...

    def rollout_length(self, num_envs: int) -> int:
        """Return how many steps each environment contributes to one update."""
        ...

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """Return roughly how many floating-point operations learning from so many steps takes; None: endless."""
        ...

    def validate(self, spec: Spec) -> None:
        """Raise LudusError if this algorithm cannot learn in such an environment; nothing has been compiled yet."""
        ...


def traced(default: Any, meaning: str, low: float | None = None, high: float | None = None) -> Any:
    """Declare a hyperparameter that may change without a new compilation."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "low": low, "high": high})


def static(default: Any, meaning: str, low: float | None = None, configurable: bool = True) -> Any:
    """Declare a hyperparameter that shapes the program."""
    metadata = {"static": True, "meaning": meaning, "low": low, "configurable": configurable}
    return dataclasses.field(default=default, metadata=metadata)


def check_hyperparameters(algorithm: Any) -> None:
    """Raise LudusError for the first hyperparameter outside its range. Traced values pass: they were checked before."""
    for field in dataclasses.fields(algorithm):
        _check_type(field, getattr(algorithm, field.name))
        value, low, high = getattr(algorithm, field.name), field.metadata.get("low"), field.metadata.get("high")
        if isinstance(value, bool) or not isinstance(value, Real):
            continue
        if not math.isfinite(value):
            raise LudusError(f"algorithm.{field.name}={value}: must be a finite number")
        too_low, too_high = low is not None and not value >= low, high is not None and not value <= high
        if too_low or too_high:
            allowed = f"at least {low:g}" if high is None else f"between {low or 0:g} and {high:g}"
            raise LudusError(f"algorithm.{field.name}={value}: must be {allowed}")


def _check_type(field: dataclasses.Field, value: Any) -> None:
    """Refuse what is plainly of another kind than the default; arrays pass, they are traced values."""
    default = field.default
    wanted = None
    if isinstance(value, str):
        wanted = "a network such as ludus.MLP()" if field.name == "network" else f"a value like {default}, not a text"
    elif value is None and default is not None:
        wanted = f"a value like {default}"
    elif (callable(value) or isinstance(value, dict | list | set)) and isinstance(default, Real):
        schedule = "; a schedule goes into `optimizer`" if field.name == "learning_rate" else ""
        wanted = f"a value like {default}, not a {type(value).__name__}{schedule}"
    elif isinstance(default, bool) and not isinstance(value, bool):
        wanted = "True or False"
    elif isinstance(default, int) and not isinstance(default, bool) and not isinstance(value, Integral):
        wanted = "an integer"
    if wanted:
        raise LudusError(f"algorithm.{field.name}={value!r}: must be {wanted}")


def as_arrays(algorithm: Any) -> Any:
    """Make every traced hyperparameter a float32 array: the one place where that happens.

    A Python float, a NumPy float and an array would each compile a program of their own.
    """
    return jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), algorithm))
