"""A Gymnasium environment of your own: any `gymnasium.Env` works as it is.

On the command line, in the folder of this file: `ludus train env=own:Corridor`, if it is saved as own.py.
"""

import gymnasium
import numpy as np

import ludus


class Corridor(gymnasium.Env):
    """Walk to the right end of a corridor; each step costs a little."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 8):
        self.length, self.position, self.steps = length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position, self.steps = int(self.np_random.integers(self.length // 2)), 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position = max(0, self.position + (1 if action == 1 else -1))
        self.steps += 1
        arrived, is_late = self.position == self.length, self.steps == 50
        # Arrived is an end of its own; too late is only a cut: the walk would have gone on.
        return self._observation(), 1.0 if arrived else -0.05, arrived, is_late, {"is_success": arrived}

    def _observation(self) -> np.ndarray:
        return np.array([self.position / self.length], np.float32)


env = ludus.make_env(Corridor, num_envs=4, length=8)
ppo = ludus.PPO(batch_size=256, minibatch_size=64, learning_rate=3e-3)
result = ludus.Trainer(ppo, env, ludus.Settings(seed=0)).train(total_steps=8192)
print(result)
assert result.evaluation is not None and result.evaluation.returns.mean() > 0.5
