"""A state without those of its long arrays' pieces that are damaged.

Two kinds of arrays are written in pieces. Of a replay, the transitions are left out that a damaged piece held or that
need an observation in it; they can never be drawn again. Of recorded actions, which bring environments back to where
they were, all are left out: the environments start new episodes. Neither is what the run would have been.
"""

from typing import NamedTuple

import jax
import numpy as np

from ludus.algorithms.replay import Replay, without
from ludus.runs.checkpoint.format import Broken, DamagedError
from ludus.training.state_arrays import ENV, Written, name_of
from ludus.types import Tree

RINGS = ("frames", "transitions")
"""Parts of a replay that are written row after row."""


class Mended(NamedTuple):
    """The state that can be gone on with."""

    arrays: dict[str, np.ndarray]
    lost: list[str]
    """What it costs, in words."""
    written: Written
    """Counts of long arrays as of a checkpoint so old that the next one writes all their pieces."""
    is_exact: bool = True
    """Whether what is lost was not needed any more."""


def mended(tree: Tree, arrays: dict[str, np.ndarray], broken: list[Broken]) -> Mended:
    """Return the arrays of a state like `tree` without what is broken; DamagedError if nothing is known to do that."""
    result, waiting = Mended(dict(arrays), [], {}), list(broken)
    for path, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_replay)[0]:
        rings = tuple(f"{name_of(path)}/{ring}" for ring in RINGS)
        own = [piece for piece in waiting if piece.array.startswith(rings)]
        if _is_replay(node) and own:
            result = _without(result, node, name_of(path), own)
            waiting = [piece for piece in waiting if piece not in own]
    for piece in waiting:
        if not piece.array.startswith(ENV):
            raise DamagedError(str(piece))
        result.arrays.pop(piece.array, None)
    actions = ["the recorded actions of the environments, which start new episodes"] if waiting else []
    return result._replace(lost=result.lost + actions)


def _without(state: Mended, node: Replay, name: str, broken: list[Broken]) -> Mended:
    """Take what one replay has lost out of the arrays under its name."""
    replay = jax.tree_util.tree_map_with_path(lambda path, _: state.arrays[f"{name}/{name_of(path)}"], node)
    bad = {"frames": np.zeros(replay.num_frames, bool), "transitions": np.zeros(replay.num_slots, bool)}
    for piece in broken:
        bad[piece.array.removeprefix(f"{name}/").partition("/")[0]][piece.rows] = True
    left = without(replay, bad["transitions"], bad["frames"])
    leaves = jax.tree_util.tree_flatten_with_path(left)[0]
    before, after = int(replay.ends.size), int(left.ends.size)
    return Mended(
        state.arrays | {f"{name}/{name_of(path)}": np.asarray(leaf) for path, leaf in leaves},
        [*state.lost, f"{before - after:,} of {before:,} transitions of the replay"],
        # Counted from so long ago that all their rows have been written since.
        state.written | {f"{name}/{r}": ((n - len(bad[r])) % cycle, cycle) for r, (n, cycle) in left.written().items()},
        state.is_exact and before == after,
    )


def _is_replay(node: object) -> bool:
    return isinstance(node, Replay)
