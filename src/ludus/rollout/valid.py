"""The rows of a rollout that count, and the episodes that it cuts; for arrays of both kinds, NumPy's and JAX's."""

from typing import Any

from ludus.types import Array, Transition


def within(active: Array, ended: Array, episodes_left: Array) -> Any:
    """Return which rows `[B]` of one step count, if only so many episodes more may end: the first of those that do."""
    return active & ~(ended & ((active & ended).cumsum() > episodes_left))


def cut_short(steps: Transition, is_whole: bool) -> tuple[Transition, Any]:
    """Truncate episodes that go on where no row follows that counts, and return how many they are.

    What was cut is worth what the critic says of the next observation. A rollout that is not made of whole episodes
    cuts none at its very end: they go on in the next one.
    """
    follows = steps.valid[1:]
    last = follows[:1] & False if is_whole else follows[:1] | True
    follows = steps.valid.__array_namespace__().concat([follows, last])
    is_cut = steps.valid & ~follows & ~(steps.terminated | steps.truncated)
    return steps._replace(truncated=steps.truncated | is_cut), is_cut.sum()
