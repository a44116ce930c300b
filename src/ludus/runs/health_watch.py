"""Looks at the figures of health as they are journalled, and says once if a part of a network has stopped learning.

Either nearly all activations of a layer are at the ends of their range, where hardly a slope passes; or a layer's
gradient is exactly zero though others of its network have one, as behind units that are all off. One look may be
chance: it is said after several in a row.
"""

from typing import Any

SATURATION, GRADIENT = "saturation/", "gradient_norm/"
NEARLY_ALL = 0.9
"""The share of a layer's activations from which on it counts as saturated."""
NETWORKS = ("actor", "critic", "critics", "shared", "alpha")
"""Names in the place of a layer's that stand for all layers of a network."""
LOOKS = 3
"""So many rows with figures of health in a row."""


class HealthWatch:
    """Counts for how many looks each layer has been still."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._still: dict[str, int] = {}
        self._has_spoken = False

    def saw(self, row: dict[str, Any]) -> str | None:
        """Take in a row of the journal; return what there is to say, once in a process."""
        if self._has_spoken or not any(name.startswith(GRADIENT) for name in row):
            return None
        still = _still(row)
        self._still = {name: self._still.get(name, 0) + 1 for name in still}
        told = [still[name] for name, looks in self._still.items() if looks >= LOOKS]
        if not told:
            return None
        self._has_spoken = True
        more = f" (and {len(told) - 1} more of the kind)" if len(told) > 1 else ""
        return (
            f"warning: {told[0]}{more} in {LOOKS} rows with figures of health in a row, so hardly anything is learnt "
            "through it; a new run with a smaller algorithm.learning_rate, normalize_observations or normalize_returns "
            "may do better"
        )


def _still(row: dict[str, Any]) -> dict[str, str]:
    """Return by figure what is wrong with each layer that cannot learn."""
    found = {
        name: f"{share:.0%} of the activations of {name.removeprefix(SATURATION)} are saturated (beyond ±0.99)"
        for name, share in row.items()
        if name.startswith(SATURATION) and share >= NEARLY_ALL
    }
    norms = {name.removeprefix(GRADIENT): norm for name, norm in row.items() if name.startswith(GRADIENT)}
    for layer in (layer for layer, norm in norms.items() if norm == 0.0):
        network = layer.partition("/")[0].partition("_")[0]  # actor_torso/layers/0 and actor/torso/layers/0
        others = [network] if network in norms else NETWORKS
        if layer not in NETWORKS and any(norms.get(name, 0.0) > 0.0 for name in others):
            found[GRADIENT + layer] = f"the gradient of {layer} is 0"
    return found
