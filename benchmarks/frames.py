"""An environment that shows pictures and costs next to nothing, for ours.py and peers.py: what is timed is learning."""

from typing import Any

import gymnasium
import numpy as np

EPISODE_STEPS = 100
NUM_PICTURES = 64


class Frames(gymnasium.Env):
    """Four grey frames of 84 x 84 in the last axis, as Atari's are usually seen; six actions, of which one earns 1."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self) -> None:
        """Draw the pictures once."""
        self._pictures = np.random.default_rng(0).integers(256, size=(NUM_PICTURES, 84, 84, 4), dtype=np.uint8)
        self._count = self._shown = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Show one of the pictures."""
        super().reset(seed=seed)
        self._count = 0
        return self._show(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Show another one; the number of the last, modulo 6, was the right action."""
        reward = float(action == self._shown % 6)
        self._count += 1
        return self._show(), reward, False, self._count == EPISODE_STEPS, {}

    def _show(self) -> np.ndarray:
        self._shown = int(self.np_random.integers(NUM_PICTURES))
        return self._pictures[self._shown]
