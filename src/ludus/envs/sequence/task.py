"""A sequence task from four functions: where it starts, what an action does, what that earns, and when it is over."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ludus.envs.base import Action, Environment, State
from ludus.spaces import Box, Discrete
from ludus.types import LudusError, Step


@dataclass(frozen=True)
class SequenceTask(Environment):
    """An environment made of functions on JAX arrays; each sees one episode, and a batch of them runs at once.

    What is observed is the state itself, a vector of floats, unless `observe` makes one of it. The functions are part
    of what tasks are compared by: pass the same ones again, and nothing is compiled anew.
    """

    initial_state: Callable[[jax.Array], State]
    """`initial_state(key)`: the state that an episode starts in."""
    transition: Callable[..., State]
    """`transition(state, action)`, or `(state, action, key)` where chance has a part: the next state."""
    reward: Callable[[State, Action, State], Any]
    """`reward(state, action, next_state)`: what the step earns."""
    terminal: Callable[[State], Any] | None = None
    """`terminal(next_state)`: whether the episode is over; None: only the horizon ends it."""
    num_actions: int = 2
    """Actions are the integers below it."""
    horizon: int | None = None
    """Steps after which an episode is over, as a matter of the task: nothing is earned after it, no value is added."""
    observe: Callable[[State], jax.Array] | None = None
    """`observe(state)`: a vector of floats."""

    def __post_init__(self) -> None:
        """Refuse what is no task, in one line, and find out how long the observed vector is."""
        for name in ("initial_state", "transition", "reward"):
            if not callable(getattr(self, name)):
                raise LudusError(f"SequenceTask: {name}={getattr(self, name)!r} must be a function")
        check_count("num_actions", self.num_actions)
        if self.horizon is not None:
            check_count("horizon", self.horizon)
        key = jax.eval_shape(lambda: jax.random.key(0))
        try:
            seen = jax.eval_shape(lambda key: self._observed(self._start(key)), key)
        except Exception as error:  # whatever the user's functions raise
            raise LudusError(f"SequenceTask: initial_state(key) cannot be observed ({error})".split("\n")[0]) from error
        if len(getattr(seen, "shape", ())) != 1:
            raise LudusError("SequenceTask: the state must be a vector, or `observe` must make one of it")
        object.__setattr__(self, "observation_space", Box(-jnp.inf, jnp.inf, seen.shape))
        object.__setattr__(self, "action_space", Discrete(self.num_actions))

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Start an episode; the state is the user's and the number of steps so far."""
        state = self._start(key)
        return (state, jnp.int32(0)), self._observed(state)

    def step(self, state: State, action: Action, key: jax.Array) -> tuple[State, Step]:
        """Take an action."""
        before, steps = state
        after = self.transition(before, action, *([key] if _takes_three(self.transition) else []))
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before)
        reward = jnp.asarray(self.reward(before, action, after), jnp.float32)
        is_over = jnp.asarray(False if self.terminal is None else self.terminal(after), bool)
        if self.horizon is not None:
            is_over = is_over | (steps + 1 >= self.horizon)
        return (after, steps + 1), Step(self._observed(after), reward, is_over)

    def _start(self, key: jax.Array) -> State:
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), self.initial_state(key))

    def _observed(self, state: State) -> jax.Array:
        return jnp.asarray(state if self.observe is None else self.observe(state), jnp.float32)


def check_count(name: str, value: object) -> None:
    """Refuse what is no count."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LudusError(f"env_options.{name}={value}: must be an integer of at least 1")


def _takes_three(function: Callable) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True
