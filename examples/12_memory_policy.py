"""A memory policy, for an environment that does not show all of its state: CartPole without velocities."""

from dataclasses import dataclass, replace

import ludus
from ludus.envs.native.classic_control import CartPole
from ludus.spaces import Box


@dataclass(frozen=True)
class PositionsOnly(CartPole):
    """CartPole that shows where cart and pole are, and not how fast they move."""

    observation_space = Box.from_arrays(*(bound[::2] for bound in CartPole.observation_space.bounds))

    def reset(self, key):
        state, obs = super().reset(key)
        return state, obs[::2]

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, step._replace(obs=step.obs[::2])


env = ludus.make_env(PositionsOnly, num_envs=16)
settings = ludus.Settings(seed=0, eval_frequency=0)
memory = ludus.PPO(
    network=ludus.GRU(32), batch_size=1024, minibatch_size=256, learning_rate=3e-3, normalize_returns=True
)
for ppo in (memory, replace(memory, network=ludus.MLP())):
    print(type(ppo.network).__name__, ludus.Trainer(ppo, env, settings).train(total_steps=200_000).evaluation)
