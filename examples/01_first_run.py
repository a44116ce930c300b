"""Train PPO on CartPole-v1, load what it learnt, and play with it."""

import ludus

env = ludus.make_env("CartPole-v1", num_envs=8)
ppo = ludus.PPO(learning_rate=3e-3, batch_size=1024, minibatch_size=128, epochs_per_update=8)
trainer = ludus.Trainer(ppo, env, ludus.Settings(seed=0), run_dir="runs/first")
print(trainer.train(total_steps=28_672))

policy = ludus.load_policy("runs/first")
print(ludus.evaluate(policy, env, episodes=100, seed=1))
print("action for one observation:", policy([0.0, 0.1, 0.02, -0.1]))
