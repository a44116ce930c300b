"""Buffers of the PPO kit: a row for each kind of information, a column for each timestep.

    trajectory = TrajectoryBuffer()                   # one episode
    trajectory.push(state, action, reward, next_state, terminated, truncated, value, log_prob)
    trajectory.finish(last_value, gamma, gae_lambda)  # adds the rows advantage and return
    rollout = RolloutBuffer(threshold_rollout_length=2048)
    rollout.concat(trajectory)                        # whole episodes, until there are enough steps
    for batch in rollout.batches(batch_size=64, seed=0): ...

`RolloutBuffer.rollout` is the same as the core sees it: time-major transitions whose padding is marked in `valid`.
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from ludus.algorithms.advantages import generalized_advantages
from ludus.types import Array, LudusError, Rollout, Transition

ROWS = ("state", "action", "reward", "next_state", "terminated", "truncated", "value", "log_prob", "sample")
"""What is known of a step. `sample` is the action before it was clipped and scaled to the bounds."""
ESTIMATES = ("advantage", "return")
"""What `finish` adds."""
SHORTEST = 64
"""Lengths are padded to powers of two from here on: a program for each power, not for each length."""


class Buffer:
    """Rows of information over timesteps."""

    def __init__(self, rows: tuple[str, ...] = ROWS):
        """Start empty."""
        self.rows = rows
        self._columns: list[dict[str, np.ndarray]] = []

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Kinds of information, timesteps."""
        return len(self.rows), len(self)

    def push(self, **step: Any) -> None:
        """Add one timestep: a value for every row."""
        if step.keys() != set(self.rows):
            amiss = sorted(step.keys() ^ set(self.rows))
            raise LudusError(f"push: the rows are {', '.join(self.rows)}; missing or unknown: {', '.join(amiss)}")
        self._columns.append({name: np.array(step[name]) for name in self.rows})

    def concat(self, other: "Buffer") -> None:
        """Add another buffer's timesteps after these."""
        if other.rows != self.rows:
            raise LudusError(f"concat: rows {', '.join(other.rows)} do not fit {', '.join(self.rows)}")
        self._columns += other._columns

    def retrieve(self, name: str | None = None) -> Any:
        """Return one row `[T, ...]`, or all of them by name. `done` is terminated or truncated."""
        if name is None:
            return {row: self.retrieve(row) for row in self.rows}
        if name == "done":
            return self.retrieve("terminated") | self.retrieve("truncated")
        if name not in self.rows:
            raise LudusError(f"retrieve: no row {name!r}; there are {', '.join(self.rows)} and done")
        return np.array([column[name] for column in self._columns])

    def clear(self) -> None:
        """Forget everything."""
        self._columns = []


class TrajectoryBuffer:
    """One episode."""

    def __init__(self) -> None:
        """Start before the first step."""
        self.clear()

    def __len__(self) -> int:
        return len(self.buffer)

    def push(
        self,
        state: Array,
        action: Array,
        reward: float,
        next_state: Array,
        terminated: bool,
        truncated: bool,
        value: float,
        log_prob: float,
        sample: Array | None = None,
    ) -> None:
        """Add one step; `next_state` is the true successor, also at the end."""
        if self.is_over:
            raise LudusError("push: this trajectory is over: finish it, concat it to a rollout, then clear()")
        self.buffer.push(
            state=state,
            action=action,
            reward=np.float32(reward),
            next_state=next_state,
            terminated=np.bool_(terminated),
            truncated=np.bool_(truncated),
            value=np.float32(value),
            log_prob=np.float32(log_prob),
            sample=action if sample is None else sample,
        )
        self.is_over = bool(terminated or truncated)

    def finish(self, last_value: float = 0.0, gamma: float = 0.99, gae_lambda: float = 0.95) -> None:
        """Estimate advantages and returns.

        Args:
            last_value: value of the last `next_state`; not looked at if the episode terminated there. An episode
                that neither terminated nor was truncated is truncated here.
            gamma: discount factor.
            gae_lambda: trace decay.
        """
        if not len(self) or self.estimates:
            raise LudusError(f"finish: the trajectory {'is finished already' if len(self) else 'is empty'}")
        step = self.buffer.retrieve()
        if not self.is_over:
            step["truncated"][-1] = True
            self.buffer._columns[-1]["truncated"] = step["truncated"][-1]
            self.is_over = True
        next_value = np.append(step["value"][1:], np.float32(last_value))
        inputs = step["reward"], step["value"], next_value, step["terminated"], step["truncated"]
        padded = [np.zeros((_padded(len(self)), 1), x.dtype) for x in inputs]
        for room, row in zip(padded, inputs, strict=True):
            room[: len(row), 0] = row
        advantage = np.asarray(generalized_advantages(*map(jnp.asarray, padded), gamma, gae_lambda))[: len(self), 0]
        self.estimates = {"advantage": advantage, "return": advantage + step["value"]}

    def retrieve(self, name: str | None = None) -> Any:
        """Return one row `[T, ...]` or all of them by name; after `finish` with `advantage` and `return`."""
        if name is None:
            return self.buffer.retrieve() | self.estimates
        return self.estimates[name] if name in self.estimates else self.buffer.retrieve(name)

    def clear(self) -> None:
        """Begin another episode."""
        self.buffer, self.is_over = Buffer(), False
        self.estimates: dict[str, np.ndarray] = {}


class RolloutBuffer:
    """Whole trajectories one after the other, until there are at least `threshold_rollout_length` steps."""

    def __init__(self, threshold_rollout_length: int = 2048):
        """Start empty."""
        if threshold_rollout_length < 1:
            raise LudusError(f"threshold_rollout_length={threshold_rollout_length}: must be at least 1")
        self.threshold_rollout_length = threshold_rollout_length
        self.clear()

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def is_full(self) -> bool:
        """Whether there is enough to learn from."""
        return len(self) >= self.threshold_rollout_length

    def concat(self, trajectory: TrajectoryBuffer) -> None:
        """Add a finished trajectory, whole: the rollout may grow past its threshold, never stop short of it."""
        if not trajectory.estimates:
            raise LudusError("concat: the trajectory is not finished: call finish(last_value) first")
        if self.is_full:
            raise LudusError(f"concat: the rollout is full ({len(self)} steps): learn from it, then clear()")
        steps = trajectory.retrieve()
        for t in range(len(trajectory)):
            self.buffer.push(**{name: row[t] for name, row in steps.items()})

    def retrieve(self, name: str | None = None) -> Any:
        """Return one row `[T, ...]`, or all of them by name."""
        return self.buffer.retrieve(name)

    def clear(self) -> None:
        """Begin another rollout."""
        self.buffer = Buffer(ROWS + ESTIMATES)

    def batches(
        self, batch_size: int = 64, batch_num: int | None = None, seed: int = 0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield every step once, in shuffled batches of `batch_size`, of which the last may be shorter.

        With `batch_num` there are exactly so many batches instead, whose sizes differ by at most one.
        """
        n = len(self)
        if batch_size < 1 or (batch_num is not None and not 1 <= batch_num <= max(n, 1)):
            raise LudusError(
                f"batch_size={batch_size}, batch_num={batch_num}: must be from 1 to the {n} steps there are"
            )
        order = np.random.default_rng(seed).permutation(n)
        cuts = np.arange(batch_size, n, batch_size)
        steps = self.retrieve()
        for index in np.split(order, cuts) if batch_num is None else np.array_split(order, batch_num):
            yield {name: row[index] for name, row in steps.items()}

    def rollout(self, multiple: int = 1) -> Rollout:
        """Return the steps as the core learns from them: one environment, padded to a length that few rollouts exceed.

        The length is a multiple of the threshold and of `multiple`, so that nearly all rollouts share one program.
        """
        unit = int(np.lcm(self.threshold_rollout_length, multiple))
        length = -(-len(self) // unit) * unit

        def lane(name: str) -> np.ndarray:
            row = self.retrieve(name)
            row = row.astype(np.float32) if row.dtype == np.float64 else row
            row = row.astype(np.int32) if row.dtype == np.int64 else row
            return np.concatenate([row, np.zeros((length - len(row), *row.shape[1:]), row.dtype)])[:, None]

        valid = (np.arange(length) < len(self))[:, None]
        extras = {"sample": lane("sample"), "log_prob": lane("log_prob")}
        ends = lane("terminated"), lane("truncated")
        steps = Transition(lane("state"), lane("action"), lane("reward"), *ends, lane("next_state"), extras, valid)
        return Rollout(steps, (), np.float32(0))


def _padded(length: int) -> int:
    return max(SHORTEST, 1 << (length - 1).bit_length())
