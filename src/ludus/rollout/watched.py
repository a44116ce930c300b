"""An episode that is watched: what both ways to play one take and return."""

from collections.abc import Callable
from typing import Any, NamedTuple

Look = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""`look(parts, memory, obs) -> memory, action, figures`: a pure function of one lane `[1, ...]`."""


Enough = Callable[[], bool]
"""Whether an episode is to be cut here, for instance because time is up."""


class Watched(NamedTuple):
    """One episode: trees of arrays `[T, 1, ...]`, whose rows belong together, and what came after the last step."""

    obs: Any
    action: Any
    reward: Any
    figures: Any
    final_obs: Any
    final_figures: Any
    terminated: bool
    truncated: bool
    seed: int | None
    """What a host environment was reset with; a JAX environment starts from a key."""
