"""Environments that show pictures are learnt on a CPU too, at the size that Atari's are usually seen in."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.networks.network import network_for
from ludus.networks.soft_actor_critic import CriticOf, critic_values
from ludus.spaces import Box
from ludus.types import Spec

pytestmark = pytest.mark.slow

QUIET = ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False)


class Halves(gymnasium.Env):
    """One step: a bright half, left or right, of every frame says which action earns 1."""

    def __init__(self, shape=(84, 84, 4)):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side, half = int(self.np_random.integers(2)), self.observation_space.shape[1] // 2
        self.picture = self.np_random.integers(64, size=self.observation_space.shape, dtype=np.uint8)
        self.picture[:, half * self.side : half * (self.side + 1)] += 150
        return self.picture, {}

    def step(self, action):
        return self.picture, float(action == self.side), True, False, {}


class Steered(Halves):
    """The same with a steering wheel."""

    def __init__(self):
        super().__init__((52, 52, 1))  # smaller: three networks see it
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def step(self, action):
        return self.picture, float(1.0 - (action[0] - (2 * self.side - 1)) ** 2), True, False, {}


def test_ppo_learns_what_four_frames_of_84_by_84_show():
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, epochs_per_update=2, learning_rate=1e-3)
    trainer = ludus.Trainer(ppo, ludus.make_env(Halves, 8), QUIET)
    trainer.train(total_steps=640)
    assert trainer.evaluate(32).returns.mean() == 1.0


def test_sac_learns_with_every_part_of_networks_that_see_pictures():
    env = ludus.make_env(Steered, 4)
    sac = ludus.SAC(batch_size=16, replay_size=64, learning_starts=8, unroll_length=2, updates_per_step=0.5)
    trainer = ludus.Trainer(sac, env, QUIET)
    before = jax.tree.map(np.array, trainer.state.learner.learner.parameters)
    trainer.train(total_steps=16)
    after = jax.tree.map(np.array, trainer.state.learner.learner.parameters)
    assert all(
        np.isfinite(b).all() and (a != b).any() for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)
    )


def test_critics_that_see_pictures_say_the_same_one_after_the_other_as_at_once():
    spec = Spec(Box(0.0, 255.0, (36, 40, 2), "uint8"), Box(-1.0, 1.0, (1,)), 1)
    network = network_for(CriticOf(ludus.MLP(hidden_sizes=(8,))), spec)
    critics = tuple(
        jnp.stack(pair) for pair in zip(*(network.initialize(jax.random.key(i)) for i in range(2)), strict=True)
    )
    rng = np.random.default_rng(0)
    obs, action = rng.integers(256, size=(5, 36, 40, 2), dtype=np.uint8), rng.uniform(-1, 1, (5, 1)).astype(np.float32)
    at_once = jax.vmap(lambda leaves: network.merge(leaves)(obs, action))(critics)
    assert network.has_filters
    np.testing.assert_allclose(critic_values(network, critics, obs, action), at_once, rtol=1e-5, atol=1e-6)
