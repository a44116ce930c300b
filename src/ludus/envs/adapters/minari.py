"""Minari's data sets (https://minari.farama.org) as demonstrations. The only file that imports Minari."""

import importlib
from typing import Any

import numpy as np

from ludus.envs.adapters.gymnasium_spaces import as_space
from ludus.runtime.demonstrations import Demonstrations, from_arrays
from ludus.spaces import Space, flatten, unflatten
from ludus.types import LudusError, Tree


def read_minari(dataset: str, download: bool = False) -> Demonstrations:
    """Return the episodes of a data set of Minari's.

    Args:
        dataset: its id, such as "D4RL/pendulum/expert-v0". Minari looks for it where MINARI_DATASETS_PATH says.
        download: fetch it if it is not there yet.
    """
    try:
        minari: Any = importlib.import_module("minari")
    except ImportError as error:
        raise LudusError(f"{dataset}: needs Minari: pip install 'minari[hdf5,arrow]'") from error
    try:
        found = minari.load_dataset(dataset, download=download)
    except Exception as error:  # whatever it raises for an unknown name, a missing library or a damaged file
        said = " ".join(str(error).split())[:200]
        raise LudusError(f"{dataset}: Minari cannot load it ({type(error).__name__}: {said})") from error
    kinds = "observation", "action"
    spaces = [as_space(getattr(found.spec, f"{kind}_space"), f"{dataset}: {kind} space") for kind in kinds]
    episodes = list(found.iterate_episodes())
    if not episodes:
        raise LudusError(f"{dataset}: is empty; there must be an episode at least")
    observed = [_leaves(spaces[0], episode.observations) for episode in episodes]
    acted = [_leaves(spaces[1], episode.actions) for episode in episodes]
    terminated, truncated = (
        np.concatenate([np.asarray(getattr(episode, name), bool) for episode in episodes])
        for name in ("terminations", "truncations")
    )
    # The last episode may have been running still when its writer closed the data set.
    ends = np.cumsum([len(episode.rewards) for episode in episodes]) - 1
    truncated[ends] |= ~terminated[ends]
    return from_arrays(
        *spaces,
        _joined(spaces[0], [[x[:-1] for x in parts] for parts in observed]),
        _joined(spaces[1], acted),
        reward=np.concatenate([np.asarray(episode.rewards, np.float64) for episode in episodes]),
        terminated=terminated,
        truncated=truncated,
        final_obs=_joined(spaces[0], [[x[-1:] for x in parts] for parts in observed]),
        env=f"gym:{found.spec.env_spec.id}" if found.spec.env_spec is not None else "",
        about={"minari": dataset},
    )


def _leaves(space: Space, value: Tree) -> list[np.ndarray]:
    return [np.asarray(part) for part in flatten(space, value)]


def _joined(space: Space, episodes: list[list[np.ndarray]]) -> Any:
    return unflatten(space, [np.concatenate(parts) for parts in zip(*episodes, strict=True)])
