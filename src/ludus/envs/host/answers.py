"""Answers of environments, checked and never guessed at: a reward is a number, an end is True or False."""

from typing import Any

import numpy as np

NUMBERS = "biuf"
"""The kinds of NumPy types that hold real numbers."""


def number(value: object) -> float:
    """Return the one number that an answer is; ValueError if it is none."""
    if type(value) is float:  # the usual case, without a detour
        return value
    array = _array(value)
    if array.size != 1:
        raise ValueError(f"is {shown(value)}, but must be one number")
    return array.item()


def flag(value: object) -> bool:
    """Return whether an answer says True or False; ValueError if it says neither."""
    if value is True or value is False:
        return value
    array = _array(value)
    if array.size != 1 or array.item() not in (0, 1):
        raise ValueError(f"is {shown(value)}, but must be True or False")
    return bool(array.item())


def put(room: np.ndarray, index: int, value: object, bounds: tuple[Any, Any] | None) -> None:
    """Write what one environment shows into its row; ValueError if it is not of the row's type, or out of bounds."""
    array = _array(value)
    if array.shape != room.shape[1:]:
        raise ValueError(f"has the shape {array.shape}, but its observation space says {room.shape[1:]}")
    with np.errstate(invalid="ignore", over="ignore"):
        room[index] = array
    row = room[index]
    is_lost = (row != array) if room.dtype.kind != "f" else np.zeros((), bool)
    if bounds is not None:
        is_lost = is_lost | (row < bounds[0]) | (row > bounds[1])
    if is_lost.any():
        first = np.broadcast_to(array, is_lost.shape)[is_lost].flat[0]
        within = "" if bounds is None else f" from {np.min(bounds[0])} to {np.max(bounds[1])}"
        raise ValueError(f"holds {first}, but must be {room.dtype}{within}")


def shown(value: object) -> str:
    """Return a value as a word for an error of one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _array(value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever an object raises that is asked for its numbers
        raise ValueError(f"is {shown(value)}, which holds no numbers") from error
    if array.dtype.kind not in NUMBERS:
        raise ValueError(f"is {shown(value)}, which holds no real numbers")
    return array
