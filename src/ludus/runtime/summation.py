"""Long sums of small numbers: 50,000 rewards of 0.01, one after the other in 32 bits, come to 500.18."""

from typing import Any

from ludus.types import Tree


def add(total: Tree, rest: Tree, x: Tree) -> tuple[Any, Any]:
    """Add to a sum that is kept as the nearest float32 and the rest that this leaves out (Knuth's two-sum).

    The same numbers, bit by bit, of NumPy's arrays and of JAX's.
    """
    wide = total + x
    part = wide - total
    rest = rest + ((total - (wide - part)) + (x - part))
    nearest = wide + rest
    return nearest, rest - (nearest - wide)
