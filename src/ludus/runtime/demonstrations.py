"""Demonstrations: episodes that somebody played, as arrays to learn from.

They stand here because whatever makes them (`envs`, `training`) and whatever learns from them (`algorithms`) may import
this room. `demonstration_file.py` reads and writes them. Nothing here needs JAX.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ludus.spaces import Box, Leaf, Space, allows_any, flatten, integer_bounds, leaves, mask_size, to_data, unflatten
from ludus.types import LudusError, Tree

FORMAT = "ludus-demonstrations-1"
FLAGS = ("terminated", "truncated")


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Episodes one after the other: N steps of E episodes, row t of all arrays `[N, ...]` belongs together.

    Arrays are converted to the types of their spaces, and refused if they do not fit.
    """

    observation_space: Space
    action_space: Space
    obs: Tree
    """What was observed when the action was chosen, `[N, ...]`: an array, or dicts and tuples of them."""
    action: Tree
    """The action as the environment was given it, `[N, ...]`."""
    reward: np.ndarray
    """What the action brought, float32 `[N]`."""
    terminated: np.ndarray
    """Whether the episode came to its own end at this step, `[N]`."""
    truncated: np.ndarray
    """Whether it was cut here, `[N]`. At an episode's last step one of both is true, and nowhere else."""
    final_obs: Tree = None
    """What was observed after each episode's last step, before any reset, `[E, ...]`; None: nobody wrote it down."""
    action_mask: np.ndarray | None = None
    """Which actions were allowed, `[N, size]` as in `ludus.Masked`; None where all were."""
    env: str = ""
    """The environment they were played in, if that is known."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Who played, for the record: plain data."""

    def __post_init__(self) -> None:
        """Convert and check."""
        if not isinstance(self.about, Mapping):
            raise LudusError(f"demonstrations: about={self.about!r}: must be names and values")
        ended = _ended(self.terminated, self.truncated)
        count, episodes = len(ended), int(ended.sum())
        given = {
            "obs": _values("obs", self.observation_space, self.obs, count),
            "action": _values("action", self.action_space, self.action, count),
            "reward": _array("reward", Box(-np.inf, np.inf, ()), self.reward, count),
            "terminated": np.asarray(self.terminated, bool),
            "truncated": np.asarray(self.truncated, bool),
            "about": json.loads(json.dumps(dict(self.about), sort_keys=True, allow_nan=False)),
        }
        if self.final_obs is not None:
            given["final_obs"] = _values("final_obs", self.observation_space, self.final_obs, episodes)
        if self.action_mask is not None:
            given["action_mask"] = _mask(self.action_space, self.action_mask, count)
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.reward)

    @cached_property
    def ends(self) -> np.ndarray:
        """The row of each episode's last step, `[E]`."""
        return np.flatnonzero(self.terminated | self.truncated)

    @cached_property
    def starts(self) -> np.ndarray:
        """The row of each episode's first step, `[E]`."""
        return np.concatenate([[0], self.ends[:-1] + 1])

    @property
    def num_episodes(self) -> int:
        """The number of episodes."""
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """Steps of each episode, `[E]`."""
        return self.ends - self.starts + 1

    @property
    def returns(self) -> np.ndarray:
        """Sum of rewards of each episode in float64, `[E]`."""
        return np.add.reduceat(self.reward.astype(np.float64), self.starts)

    @cached_property
    def next_obs(self) -> Any:
        """The true successor of every observation, `[N, ...]`: at an episode's last step its final observation."""
        if self.final_obs is None:
            raise LudusError("demonstrations: do not say what was observed after the last steps of their episodes")
        pairs = zip(*(flatten(self.observation_space, x) for x in (self.obs, self.final_obs)), strict=True)
        return unflatten(self.observation_space, [self._shifted(obs, final) for obs, final in pairs])

    def _shifted(self, obs: np.ndarray, final: np.ndarray) -> np.ndarray:
        after = np.roll(obs, -1, axis=0)
        after[self.ends] = final
        return after

    def episodes(self, chosen: Sequence[int] | np.ndarray) -> "Demonstrations":
        """Return some of the episodes, by their numbers, in that order."""
        chosen = np.asarray(chosen, np.int64)
        if not chosen.size or chosen.min() < 0 or chosen.max() >= self.num_episodes:
            raise LudusError(f"demonstrations: have episodes 0 to {self.num_episodes - 1}, not {chosen.tolist()[:5]}")
        rows = np.concatenate([np.arange(self.starts[i], self.ends[i] + 1) for i in chosen])
        arrays = {name: x[chosen if name.startswith("final_") else rows] for name, x in self.arrays().items()}
        return self._of(arrays)

    def _of(self, arrays: Mapping[str, np.ndarray]) -> "Demonstrations":
        return from_named(arrays, self.observation_space, self.action_space, self.env, self.about)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every array by the name that it has in a file."""
        named = _named("obs", self.observation_space, self.obs) | _named("action", self.action_space, self.action)
        named |= {"reward": self.reward, "terminated": self.terminated, "truncated": self.truncated}
        if self.final_obs is not None:
            named |= _named("final_obs", self.observation_space, self.final_obs)
        return named if self.action_mask is None else named | {"action_mask": self.action_mask}

    def header(self) -> dict[str, str]:
        """Return what a file says besides its arrays."""
        return {
            "format": FORMAT,
            "observation_space": json.dumps(to_data(self.observation_space)),
            "action_space": json.dumps(to_data(self.action_space)),
            "env": self.env,
            "about": json.dumps(self.about, sort_keys=True),
        }

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of everything in them, which a file of them states."""
        return checksum(self.header(), self.arrays())

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, Demonstrations) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        """By content."""
        return hash(self.sha256)

    def __repr__(self) -> str:
        """Say how many they are."""
        of = f" of {self.env}" if self.env else ""
        return f"Demonstrations({self.num_episodes} episodes, {len(self):,} steps{of})"


def from_arrays(  # noqa: PLR0913  each array is given by its name
    observation_space: Space,
    action_space: Space,
    obs: Tree,
    action: Tree,
    *,
    reward: np.ndarray | None = None,
    terminated: np.ndarray | None = None,
    truncated: np.ndarray | None = None,
    next_obs: Tree = None,
    final_obs: Tree = None,
    action_mask: np.ndarray | None = None,
    env: str = "",
    about: Mapping[str, Any] | None = None,
) -> Demonstrations:
    """Make demonstrations of arrays that you have: steps one after the other, whole episodes one after the other.

    Args:
        observation_space: a space of `ludus.spaces`, as `env.observation_space` of `ludus.make_env` is.
        action_space: likewise.
        obs: observations `[N, ...]`; for a Dict or Tuple space, a dict or tuple of arrays.
        action: actions `[N, ...]` as the environment takes them.
        reward: rewards `[N]`; None stands for zeros, which cloning does not look at.
        terminated: whether the episode ended by itself at this step `[N]`; None: nowhere.
        truncated: whether it was cut at this step `[N]`; None: nowhere. What does not end in the last row is cut there.
        next_obs: what was observed after every step `[N, ...]`; it is needed after the last ones of episodes alone.
        final_obs: that alone, `[E, ...]`, in place of `next_obs`.
        action_mask: which actions were allowed `[N, size]`.
        env: the environment's id.
        about: who played, for the record.
    """
    try:
        count = len(flatten(observation_space, obs)[0])
    except (ValueError, TypeError) as error:
        raise LudusError(f"demonstrations: obs is unlike its space: {error}") from error
    nowhere = np.zeros(count, bool)
    terminated, truncated = (nowhere if x is None else np.array(x, bool) for x in (terminated, truncated))
    truncated = truncated.copy()
    if len(truncated) == len(terminated) == count > 0:
        truncated[-1] |= not terminated[-1]
    if next_obs is not None and final_obs is None:
        ends = np.flatnonzero(_ended(terminated, truncated))
        final_obs = unflatten(observation_space, [np.asarray(x)[ends] for x in flatten(observation_space, next_obs)])
    reward = np.zeros(count, np.float32) if reward is None else reward
    return Demonstrations(
        observation_space, action_space, obs, action, reward, terminated, truncated, final_obs, action_mask, env,
        about or {},
    )  # fmt: skip


def from_named(
    arrays: Mapping[str, np.ndarray],
    observation_space: Space,
    action_space: Space,
    env: str = "",
    about: Mapping[str, Any] | None = None,
) -> Demonstrations:
    """Return demonstrations of arrays by the names that they have in a file; KeyError if one is missing."""
    has_final = any(name.partition("/")[0] == "final_obs" for name in arrays)
    return Demonstrations(
        observation_space,
        action_space,
        obs=_tree("obs", observation_space, arrays),
        action=_tree("action", action_space, arrays),
        reward=arrays["reward"],
        terminated=arrays["terminated"],
        truncated=arrays["truncated"],
        final_obs=_tree("final_obs", observation_space, arrays) if has_final else None,
        action_mask=arrays.get("action_mask"),
        env=env,
        about={} if about is None else about,
    )


def joined(parts: Sequence[Demonstrations]) -> Demonstrations:
    """Return the episodes of several, one after the other; LudusError if their spaces differ."""
    first = parts[0]
    names = first.arrays().keys()
    for part in parts[1:]:
        check_spaces(part, first.observation_space, first.action_space)
        if part.arrays().keys() != names:
            raise LudusError(f"demonstrations: some have {sorted(names ^ part.arrays().keys())[0]}, others do not")
    if len(parts) == 1:
        return first
    return first._of({name: np.concatenate([part.arrays()[name] for part in parts]) for name in names})


def check_spaces(demonstrations: Demonstrations, observation_space: Space, action_space: Space) -> None:
    """Refuse demonstrations of other spaces than these."""
    seen, taken = demonstrations.observation_space, demonstrations.action_space
    for kind, theirs, ours in (("observation", seen, observation_space), ("action", taken, action_space)):
        if theirs != ours:
            raise LudusError(f"demonstrations: their {kind} space is {str(theirs)[:200]}, and not {str(ours)[:200]}")


def checksum(header: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a file's header and arrays."""
    digest = hashlib.sha256(json.dumps(dict(header), sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _ended(terminated: Any, truncated: Any) -> np.ndarray:
    """Return where episodes end; LudusError if they do not end as episodes do."""
    flags = [np.asarray(x) for x in (terminated, truncated)]
    for name, array in zip(FLAGS, flags, strict=True):
        if array.ndim != 1 or array.shape != flags[0].shape or not ((array == 0) | (array == 1)).all():
            raise LudusError(f"demonstrations: {name} must hold a boolean for each step, got shape {array.shape}")
    ended = flags[0].astype(bool) | flags[1].astype(bool)
    if not len(ended):
        raise LudusError("demonstrations: are empty; there must be a step at least")
    if not ended[-1]:
        raise LudusError("demonstrations: the last episode has no end; its last step must be terminated or truncated")
    return ended


def _names(name: str, space: Space) -> list[str]:
    names = [f"{name}/{leaf}" if leaf else name for leaf, _ in leaves(space)]
    if len(set(names)) < len(names) or not names:
        raise LudusError(f"demonstrations: the parts of {name} have no names of their own: {names[:5]}")
    return names


def _named(name: str, space: Space, value: Tree) -> dict[str, np.ndarray]:
    return dict(zip(_names(name, space), flatten(space, value), strict=True))


def _tree(name: str, space: Space, arrays: Mapping[str, np.ndarray]) -> Any:
    return unflatten(space, [arrays[key] for key in _names(name, space)])


def _values(name: str, space: Space, value: Tree, count: int) -> Any:
    """Return values of a space as arrays of its types."""
    try:
        parts = flatten(space, value)
    except ValueError as error:
        raise LudusError(f"demonstrations: {name} is unlike its space: {error}") from error
    named = zip(_names(name, space), leaves(space), parts, strict=True)
    return unflatten(space, [_array(key, leaf, part, count) for key, (_, leaf), part in named])


def _array(name: str, leaf: Leaf, value: Any, count: int) -> np.ndarray:
    """Return `count` values of a leaf as an array of its type, all of which are values of it."""
    array, shape = np.asarray(value), (count, *leaf.shape)
    if array.shape != shape:
        raise LudusError(f"demonstrations: {name} has shape {array.shape}, but must have {shape}")
    kinds = "bui" if np.dtype(leaf.dtype).kind in "bui" else "buif"
    if array.dtype.kind not in kinds:
        raise LudusError(f"demonstrations: {name} holds {array.dtype}, which is not {leaf.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        made = np.ascontiguousarray(array, leaf.dtype)
    if "f" in kinds and not np.isfinite(made).all():
        raise LudusError(f"demonstrations: {name} holds a NaN or an infinity")
    bounds = integer_bounds(leaf)
    if bounds is not None and not ((array >= bounds[0]) & (array <= bounds[1])).all():
        raise LudusError(f"demonstrations: {name} holds values that are not in {leaf}")
    if "f" not in kinds and not (made == array).all():
        raise LudusError(f"demonstrations: {name} holds numbers that {leaf.dtype} cannot hold")
    return made


def _mask(space: Space, value: Any, count: int) -> np.ndarray:
    size, array = mask_size(space), np.asarray(value)
    if not ((array == 0) | (array == 1)).all():
        raise LudusError("demonstrations: action_mask must hold booleans")
    if size is None or array.shape != (count, size):
        raise LudusError(f"demonstrations: action_mask has shape {array.shape}, but must have ({count}, {size})")
    array = np.ascontiguousarray(array, bool)
    if not allows_any(space, array).all():
        raise LudusError("demonstrations: action_mask forbids every action somewhere")
    return array
