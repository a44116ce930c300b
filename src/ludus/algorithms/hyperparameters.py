"""Hyperparameters: the fields of an algorithm, how they are declared, checked and handed to a compiled program."""

import dataclasses
import functools
import math
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar, get_args

import jax
import numpy as np

from ludus.algorithms.schedules import Schedule, parse
from ludus.types import Array, LudusError

Kind = TypeVar("Kind")

PROBES = np.linspace(0.0, 1.0, 101, dtype=np.float32)
"""A schedule is checked at these shares of the budget."""


def traced(default: object, meaning: str, low: float | None = None, high: float | None = None) -> Any:
    """Declare a hyperparameter that may change without a new compilation, and may follow a schedule."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "low": low, "high": high})


def static(default: object, meaning: str, low: float | None = None, configurable: bool = True) -> Any:
    """Declare a hyperparameter that shapes the program."""
    metadata = {"static": True, "meaning": meaning, "low": low, "configurable": configurable}
    return dataclasses.field(default=default, metadata=metadata)


def part(meaning: str, default: object = dataclasses.MISSING) -> Any:
    """Declare a part of an algorithm that has hyperparameters of its own, as another algorithm has."""
    metadata = {"part": True, "meaning": meaning, "configurable": False}
    return (
        dataclasses.field(metadata=metadata)
        if default is dataclasses.MISSING
        else dataclasses.field(default=default, metadata=metadata)
    )


def register(kind: type) -> None:
    """Make a user's own class of algorithms a pytree, as `jax.jit` needs it, unless it is one already.

    Fields of a frozen dataclass that hold floats are traced unless they say otherwise; all others are static.
    """
    if not jax.tree_util.all_leaves([object.__new__(kind)]):
        return
    if not dataclasses.is_dataclass(kind):
        jax.tree_util.register_static(kind)
        return
    names = {is_fixed: [f.name for f in _fields(kind) if is_traced(f) != is_fixed] for is_fixed in (False, True)}
    jax.tree_util.register_dataclass(kind, names[False], names[True])


def _fields(kind: type) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(kind)  # ty: ignore[invalid-argument-type]


def check_hyperparameters(algorithm: Any, prefix: str = "algorithm") -> None:
    """Read schedules that are given as text; raise LudusError for the first hyperparameter outside its range.

    Arrays and traced values pass: they were checked before. `prefix` is what keys of these hyperparameters begin with.
    """
    for field in dataclasses.fields(algorithm):
        value, key = getattr(algorithm, field.name), f"{prefix}.{field.name}"
        if field.metadata.get("part"):
            continue
        if is_traced(field) and (schedule := parse(key, value)) is not None:
            object.__setattr__(algorithm, field.name, schedule)
            _check_schedule(field, key, schedule, is_new=schedule is not value)
            continue
        _check_kind(field, key, value)
        if not isinstance(value, bool) and isinstance(value, Real):
            _check_range(field, key, float(value) if not isinstance(value, Integral) else int(value), f"{value}: ")


def _check_schedule(field: dataclasses.Field, key: str, schedule: Schedule, is_new: bool) -> None:
    """Look at its values once: inside a program its numbers are traced, and were checked before."""
    numbers = jax.tree.leaves(schedule)
    if not (is_new or (numbers and all(isinstance(number, Real) for number in numbers))):
        return
    try:
        values = schedule.probed(PROBES)
    except Exception as error:  # whatever the user's function raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LudusError(f"{key}={schedule}: is no function of progress ({reason})") from error
    for value in values:
        _check_range(field, key, value, f"{schedule}: its values ")


def is_traced(field: dataclasses.Field) -> bool:
    """Whether a field was declared by `traced`, or holds a float and says nothing else: it may follow a schedule."""
    if "low" in field.metadata or "static" in field.metadata:
        return not field.metadata.get("static", False)
    return field.type in (float, "float")


def _check_range(field: dataclasses.Field, key: str, value: float, told: str) -> None:
    low, high = field.metadata.get("low"), field.metadata.get("high")
    if not math.isfinite(value):
        raise LudusError(f"{key}={told}must be {'finite numbers' if 'its' in told else 'a finite number'}")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        allowed = f"at least {low:g}" if high is None else f"between {low or 0:g} and {high:g}"
        raise LudusError(f"{key}={told}must be {allowed}")


def _check_kind(field: dataclasses.Field, key: str, value: object) -> None:
    """Refuse what is plainly of another kind than the default; arrays pass, they are traced values."""
    default = field.default
    wanted = None
    if isinstance(default, str):
        wanted = None if isinstance(value, str) else f"a text like {default}"
    elif isinstance(value, str) and str not in get_args(field.type):
        wanted = "a network such as ludus.MLP()" if field.name == "network" else f"a value like {default}, not a text"
    elif value is None and default is not None:
        wanted = f"a value like {default}"
    elif (callable(value) or isinstance(value, dict | list | set)) and isinstance(default, Real):
        wanted = f"a value like {default}, not a {type(value).__name__}"
    elif isinstance(default, bool) and not isinstance(value, bool):
        wanted = "True or False"
    elif isinstance(default, int) and not isinstance(default, bool) and not isinstance(value, Integral):
        wanted = "an integer"
    if wanted:
        raise LudusError(f"{key}={value!r}: must be {wanted}")


def as_arrays(algorithm: Kind) -> Kind:
    """Make every traced hyperparameter a float32 array: the one place where that happens.

    A Python float, a NumPy float and an array would each compile a program of their own.
    """
    return jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), algorithm))


class Hyperparameter(NamedTuple):
    """The place of a hyperparameter: the names of the parts that lead to it and its own, and its field."""

    path: tuple[str, ...]
    field: dataclasses.Field


def hyperparameters(algorithm: object) -> dict[str, Hyperparameter]:
    """Return the places of an algorithm's hyperparameters, and of those of its parts, by name.

    Those of the algorithm that another one is built around keep their names; those of other parts are named by the
    part too, as in `reward.learning_rate`.
    """
    found: dict[str, Hyperparameter] = {}
    for field in dataclasses.fields(algorithm) if dataclasses.is_dataclass(algorithm) else ():
        if not field.metadata.get("part"):
            found[field.name] = Hyperparameter((field.name,), field)
            continue
        prefix = "" if field.name == "algorithm" else f"{field.name}."
        inside = hyperparameters(getattr(algorithm, field.name))
        found |= {
            prefix + name: Hyperparameter((field.name, *place.path), place.field) for name, place in inside.items()
        }
    return found


def value_of(algorithm: object, name: str) -> Any:
    """Return a hyperparameter by the name that `hyperparameters` gives it."""
    return functools.reduce(getattr, hyperparameters(algorithm)[name].path, algorithm)


def with_value(algorithm: Kind, name: str, value: object, is_checked: bool = True) -> Kind:
    """Return an algorithm with another value of a hyperparameter; an unchecked one may be traced."""
    return _with(algorithm, hyperparameters(algorithm)[name].path, value, is_checked)


def _with(algorithm: Kind, path: tuple[str, ...], value: object, is_checked: bool) -> Kind:
    new = _with(getattr(algorithm, path[0]), path[1:], value, is_checked) if path[1:] else value
    if is_checked:
        return dataclasses.replace(algorithm, **{path[0]: new})  # ty: ignore[invalid-argument-type]
    made = object.__new__(type(algorithm))
    for field in dataclasses.fields(algorithm):  # ty: ignore[invalid-argument-type]
        object.__setattr__(made, field.name, new if field.name == path[0] else getattr(algorithm, field.name))
    return made


def scheduled(algorithm: object) -> list[str]:
    """Return the names of hyperparameters that follow a schedule."""
    return [name for name in hyperparameters(algorithm) if isinstance(value_of(algorithm, name), Schedule)]


def at(algorithm: Kind, progress: Array) -> Kind:
    """Return the algorithm with every schedule replaced by its value at a share of the budget, in [0, 1]."""
    for name in scheduled(algorithm):
        algorithm = with_value(algorithm, name, value_of(algorithm, name)(progress), is_checked=False)
    return algorithm


def at_end(algorithm: Kind) -> Kind:
    """Return the algorithm as its schedules leave it: outside of training nothing progresses."""
    return _at_end(algorithm) if scheduled(algorithm) else algorithm


@jax.jit
def _at_end(algorithm: Kind) -> Kind:
    return at(algorithm, np.float32(1.0))
