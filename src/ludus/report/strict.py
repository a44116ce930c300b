"""Strict JSON, which every reader of it understands."""

import math
from typing import Any

from ludus.tracking.reading import readable


def strict(value: Any) -> Any:
    """Return it as strict JSON knows it: what is not finite is not known."""
    if isinstance(value, dict):
        return {readable(str(name)): strict(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else readable(str(value))
