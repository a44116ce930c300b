"""The parts without the trainer: a rollout, a replay, an update, and the steps of several policies."""

import jax
import numpy as np

import ludus
from ludus.algorithms.replay import empty_replay, insert, sample
from ludus.rollout import compiled
from ludus.types import RolloutKeys, Spec

env = ludus.make_env("Pendulum-v1", num_envs=4)
spec = Spec(env.observation_space, env.action_space, env.num_envs)
sac = ludus.SAC(network=ludus.MLP((64, 64), "relu"), learning_starts=64, replay_size=1000)

# The inference step of a policy that is learnt, of random actions, and of a rule.
state = sac.init(jax.random.key(0), spec)
obs = np.zeros((4, 3), np.float32)
_, greedy, _ = sac.act(sac.policy(state), (), obs, None, "greedy")
noise = sac.noise(sac.policy(state), jax.random.key(1), (4,))
_, drawn, _ = sac.act(sac.policy(state), (), obs, noise, "explore")
rule = -2.0 * np.sign(obs[:, 2:])
print("actions: greedy", greedy.ravel(), "random", drawn.ravel(), "rule", rule.ravel())

# A rollout of 32 steps in each of four environments: arrays [32, 4, ...].
begin, noise, start, step = jax.random.split(jax.random.key(2), 4)
carry = compiled.start(sac, env, sac.policy(state), begin)
keys = RolloutKeys(begin=begin, noise=noise, start=start, step=step)
carry, rollout, stats = compiled.collect(sac, env, sac.policy(state), carry, keys, 32)
print("rollout:", jax.tree.map(np.shape, rollout.steps))

# The replay, which any code can fill and draw from.
replay = empty_replay(1000, num_envs=4, rollout_size=32 * 4, obs=obs[0], action=np.zeros(1, np.float32))
replay = insert(replay, rollout.steps, rollout.steps.action)
print("drawn from the replay:", sample(replay, jax.random.key(3), 8).reward)

# One update: gradient steps are made once the warm-up of 64 steps is over.
update = jax.jit(sac.update)(state, rollout, jax.random.key(4))
print("gradient steps:", int(update.updates), "critic loss:", float(update.metrics["critic_loss"]))
