"""Values as every reader of JSON and YAML understands them, whatever they were before."""

import json
import math
from collections.abc import Callable
from typing import Any

from ludus.runs.limits import readable


def unknown(value: float) -> Any:
    """Return what stands for a number that is not finite, which JSON does not know."""
    return None


def strict(value: Any, not_finite: Callable[[float], Any] = unknown) -> Any:
    """Return a value made of nothing but Python's own types.

    Numbers of NumPy and JAX become Python's, names and characters that cannot be written `?`, and what is none of all
    this its text.

    Args:
        value: anything; dictionaries and lists are gone through.
        not_finite: returns what is written for a number that is NaN or infinite, `float` for the number itself.
    """
    if value is None or isinstance(value, bool):
        return value
    if type(value).__module__ != "builtins" and getattr(value, "ndim", None) == 0:
        return strict(value.item(), not_finite)
    if isinstance(value, dict):
        return {readable(str(name)): strict(entry, not_finite) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry, not_finite) for entry in value]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else not_finite(value)
    return readable(str(value))


def strict_json(value: Any) -> str:
    """Return a value as compact JSON."""
    return json.dumps(strict(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
