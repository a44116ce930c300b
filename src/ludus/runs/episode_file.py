"""A recorded episode: what happened step by step, in one file that can execute nothing.

`RUN/episodes/<label>.safetensors` holds, for an episode of T steps:

    obs, obs/<leaf>         [T, ...]  what was observed when the action was chosen
    action, action/<leaf>   [T, ...]  the action, as the environment took it
    reward                  [T]       what the action brought
    return                  [T]       the sum of rewards so far, this one included
    value                   [T]       what the critic said of the observation; absent without a critic
    entropy                 [T]       of the policy at the observation, in nats
    signal/<name>           [T]       in physical units, which the header holds
    final_obs, final_value  [1, ...]  after the last step
    branch_step             [k]       steps before which Monte-Carlo rollouts began; absent where none were played
    branch_return           [k, n]    the discounted return of each of them, from there on
    action_low, action_high [k]       bounds of the action's components

Row t of all of them belongs together. Nothing here needs JAX.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ludus.runtime import files
from ludus.types import LudusError

FORMAT = "ludus-episode-1"
EPISODES = "episodes"
SIGNAL = "signal/"
BRANCH_STEP, BRANCH_RETURN = "branch_step", "branch_return"


@dataclass(frozen=True)
class About:
    """The header of an episode's file: environment, policy and units."""

    env: str
    label: str = ""
    """Which policy played: final, best, pi_ckpt1 or the step of a checkpoint."""
    env_options: dict[str, Any] = field(default_factory=dict)
    algorithm: str = ""
    steps: int | None = None
    """Environment steps that the policy had been trained for."""
    iteration: int | None = None
    """Iterations that it had been trained for; documents also call them epochs."""
    seed: int = 0
    """Of the evaluation that the episode belongs to."""
    index: int = 0
    """Its number in that evaluation."""
    env_seed: int | None = None
    """What a host environment was reset with."""
    gamma: float | None = None
    """The discount that the value is of."""
    terminated: bool = False
    truncated: bool = False
    units: dict[str, str] = field(default_factory=dict)
    """Of the signals, by name."""
    discrete: tuple[bool, ...] = ()
    """Which components of the action are integers."""


@dataclass(frozen=True)
class Episode:
    """The arrays and what they are of."""

    about: About
    arrays: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.arrays["reward"])

    def get(self, name: str) -> np.ndarray | None:
        """Return an array, or None if the episode has none of that name."""
        return self.arrays.get(name)

    @property
    def signals(self) -> dict[str, np.ndarray]:
        """The signals by name, in the order in which they were declared."""
        return {name: self.arrays[SIGNAL + name] for name in self.about.units}

    @property
    def actions(self) -> np.ndarray:
        """Every component of the action as numbers `[T, k]`, parts one after the other."""
        parts = [array.reshape(len(self), -1) for array in self.tree("action").values()]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def tree(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of "obs" or "action" by the names of their leaves; "" is the only one of a plain space."""
        plain = {"": self.arrays[name]} if name in self.arrays else {}
        prefix = f"{name}/"
        return plain | {key.removeprefix(prefix): x for key, x in self.arrays.items() if key.startswith(prefix)}

    def realised(self) -> np.ndarray | None:
        """Return the discounted return from every step on, in float64, to hold against `value`.

        Where the episode was cut rather than ended, the critic's value of the last observation stands for the rest;
        None if there is no critic or no discount.
        """
        gamma, final = self.about.gamma, self.get("final_value")
        if gamma is None or final is None:
            return None
        total = float(final[0]) if self.about.truncated and not self.about.terminated else 0.0
        made = np.zeros(len(self))
        for t in reversed(range(len(self))):
            total = made[t] = float(self.arrays["reward"][t]) + gamma * total
        return made


def write_episode(episode: Episode, path: Path) -> None:
    """Write an episode; the file appears whole or not at all."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in episode.arrays.items()}
    header = {name: json.dumps(value) for name, value in asdict(episode.about).items()}
    try:
        files.make_folder(path.parent)
        files.write_whole(path, save(arrays, {"format": FORMAT, **header}))
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_episode(path: str | Path) -> Episode:
    """Read an episode; LudusError if the file is not one."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise LudusError(f"{path}: no such episode file")
    try:
        with safe_open(path, framework="numpy") as handle:
            header = handle.metadata() or {}
            arrays = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
        if header.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        values: dict[str, Any] = {name: json.loads(text) for name, text in header.items()}
        values["discrete"] = tuple(values["discrete"])
        about = About(**values)
        _check(about, arrays)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise LudusError(f"{path}: not a readable episode ({error})") from error
    return Episode(about, arrays)


def read_episodes(run: str | Path) -> dict[str, Episode]:
    """Read every episode of a run folder by label, those of earlier policies first; damaged ones are left out."""
    found = {}
    for path in sorted((Path(run) / EPISODES).glob("*.safetensors")):
        try:
            found[path.stem] = read_episode(path)
        except LudusError:
            continue
    by_steps = sorted(found.items(), key=lambda item: (item[1].about.steps is None, item[1].about.steps or 0, item[0]))
    return dict(by_steps)


def _check(about: About, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError or KeyError if the arrays do not belong together."""
    steps = len(arrays["reward"])
    for name, default in asdict(About("")).items():
        value = getattr(about, name)
        kinds = (int, float, type(None)) if default is None else (type(default),)
        if type(value) not in kinds:
            raise ValueError(f"{name} in its header is {value!r}")
    if not all(isinstance(unit, str) for unit in about.units.values()):
        raise ValueError("units in its header are not texts")
    for name in ("reward", "return", *(SIGNAL + name for name in about.units)):
        if arrays[name].shape != (steps,):
            raise ValueError(f"{name} has shape {arrays[name].shape}, but reward has {steps} steps")
    for name, array in arrays.items():
        if name.split("/")[0] in ("obs", "action", "value", "entropy") and len(array) != steps:
            raise ValueError(f"{name} has {len(array)} rows, but reward has {steps}")
    if not steps:
        raise ValueError("it has no steps")
    if BRANCH_STEP in arrays:
        _check_branches(arrays[BRANCH_STEP], arrays[BRANCH_RETURN], steps)


def _check_branches(begun: np.ndarray, returns: np.ndarray, steps: int) -> None:
    """Raise ValueError if branches do not begin at steps of the episode."""
    if begun.ndim != 1 or returns.ndim != 2 or len(begun) != len(returns) or not returns.size:
        raise ValueError(f"{BRANCH_RETURN} has shape {returns.shape}, but {BRANCH_STEP} has {begun.shape}")
    if begun.dtype.kind not in "iu" or begun.min() < 0 or begun.max() >= steps:
        raise ValueError(f"{BRANCH_STEP} holds no steps of the episode, which has {steps}")
