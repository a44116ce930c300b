"""Where something else owns the loop, such as a robot or a game server: three calls of an agent."""

import gymnasium

import ludus

world = gymnasium.make("CartPole-v1")
agent = ludus.Agent(
    ludus.PPO(batch_size=512, minibatch_size=64, learning_rate=1e-3),
    world.observation_space,
    world.action_space,
    seed=0,
    total_steps=8192,
)

lengths, length = [], 0
obs, _ = world.reset(seed=0)
for _ in range(8192):
    action = agent.select_action(obs)
    next_obs, reward, terminated, truncated, _ = world.step(action)
    agent.observe(next_obs, reward, terminated, truncated)
    agent.update()  # learns when a rollout is full, and returns what it measured
    obs, length = next_obs, length + 1
    if terminated or truncated:
        lengths, length = [*lengths, length], 0
        obs, _ = world.reset()

print("mean length of the first and the last 10 episodes:", sum(lengths[:10]) / 10, sum(lengths[-10:]) / 10)
agent.save_policy_net("cartpole.safetensors")
