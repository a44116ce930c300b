"""Soft actor-critic on Pendulum-v1: continuous actions, a replay, one gradient step for each environment step."""

import ludus

env = ludus.make_env("Pendulum-v1", num_envs=8)
sac = ludus.SAC(learning_starts=1000, replay_size=20_000, batch_size=128, network=ludus.MLP((64, 64), "relu"))
trainer = ludus.Trainer(sac, env, ludus.Settings(seed=0, eval_frequency=0), run_dir="runs/sac")
result = trainer.train(total_steps=10_000)
print(result)
assert result.evaluation is not None and result.evaluation.returns.mean() > -400.0
