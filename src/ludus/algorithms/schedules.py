"""Schedules: hyperparameters that follow the progress of a run, a share of its budget from 0 to 1.

    linear:START:END                 from START to END in a straight line
    cosine:START:END                 from START to END along half a cosine, level at both ends
    piecewise:P0:V0:P1:V1:...        straight lines through the values V at the shares P, level outside of them
    warmup:SHARE:VALUE               from 0 to VALUE over the first SHARE, then VALUE
    warmup:SHARE:linear:START:END    likewise, then any other schedule over the rest

That is how they are written on a command line and in files. In Python they are these classes, or any function of
progress that JAX can trace.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.types import Array, LudusError


class Schedule:
    """A hyperparameter's value by progress."""

    def __call__(self, progress: Array) -> Array:
        """Return the value at a share of the budget."""
        raise NotImplementedError

    def probed(self, shares: np.ndarray) -> list[float]:
        """Return the values at several shares, for a check before anything is compiled."""
        return [float(value) for value in jax.vmap(self)(shares)]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """A straight line."""

    start: float
    end: float

    def __call__(self, progress: Array) -> Array:
        """Return the value at a share of the budget."""
        return self.start + (self.end - self.start) * progress

    def __str__(self) -> str:
        """As on a command line."""
        return f"linear:{_text(self.start)}:{_text(self.end)}"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983), level at both ends."""

    start: float
    end: float

    def __call__(self, progress: Array) -> Array:
        """Return the value at a share of the budget."""
        return self.end + (self.start - self.end) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    def __str__(self) -> str:
        """As on a command line."""
        return f"cosine:{_text(self.start)}:{_text(self.end)}"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PiecewiseSchedule(Schedule):
    """Straight lines through given points, level before the first and after the last."""

    shares: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, progress: Array) -> Array:
        """Return the value at a share of the budget."""
        return jnp.interp(progress, jnp.asarray(self.shares), jnp.asarray(self.values))

    def __str__(self) -> str:
        """As on a command line."""
        points = zip(self.shares, self.values, strict=True)
        return ":".join(["piecewise", *(_text(number) for point in points for number in point)])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WarmupSchedule(Schedule):
    """From 0 to what another schedule begins with, then that schedule over the rest of the budget."""

    share: float
    then: Any

    def __call__(self, progress: Array) -> Array:
        """Return the value at a share of the budget."""
        rest = jnp.clip((progress - self.share) / jnp.maximum(1.0 - self.share, 1e-6), 0.0, 1.0)
        value = self.then(rest) if isinstance(self.then, Schedule) else self.then
        return value * jnp.clip(progress / jnp.maximum(self.share, 1e-6), 0.0, 1.0)

    def __str__(self) -> str:
        """As on a command line."""
        then = str(self.then) if isinstance(self.then, Schedule) else _text(self.then)
        return f"warmup:{_text(self.share)}:{then}"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Function(Schedule):
    """A function of progress that the user wrote."""

    function: Callable[[Array], Array] = field(metadata={"static": True})

    def __call__(self, progress: Array) -> Array:
        """Return the value at a share of the budget."""
        return self.function(progress)

    def __str__(self) -> str:
        """By its name."""
        return getattr(self.function, "__name__", type(self.function).__name__)


FORMS = "linear:START:END, cosine:START:END, piecewise:P0:V0:P1:V1:... or warmup:SHARE:VALUE"


def parse(name: str, value: object) -> Schedule | None:
    """Return the schedule that a value stands for; None if it stands for none."""
    if isinstance(value, Schedule):
        return value
    if callable(value) and not isinstance(value, type):
        return Function(value)
    if not isinstance(value, str):
        return None
    made = _made(value.split(":"))
    if made is None:
        raise LudusError(f"{name}={value}: must be a number, or a schedule over progress: {FORMS}")
    return made if isinstance(made, Schedule) else LinearSchedule(made, made)


def _made(words: Sequence[str]) -> Schedule | float | None:
    """Return what words say: a schedule, a number, or None if they say neither."""
    kind, rest = words[0], words[1:]
    if not rest:
        return _number(kind)
    if kind == "warmup" and len(rest) > 1:
        share, then = _number(rest[0]), _made(rest[1:])
        return None if share is None or then is None or not 0.0 <= share <= 1.0 else WarmupSchedule(share, then)
    numbers = [number for number in map(_number, rest) if number is not None]
    if len(numbers) != len(rest):
        return None
    if kind in ("linear", "cosine") and len(numbers) == 2:
        return (LinearSchedule if kind == "linear" else CosineSchedule)(*numbers)
    shares, values = tuple(numbers[::2]), tuple(numbers[1::2])
    is_rising = all(a < b for a, b in itertools.pairwise(shares))
    if kind == "piecewise" and len(shares) == len(values) > 0 and is_rising:
        return PiecewiseSchedule(shares, values)
    return None


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _text(number: Array) -> str:
    return f"{float(number):.9g}"
