"""Demonstrations: a policy that errs half of the time shows what to do, a network clones it, PPO goes on from there."""

import ludus

env = ludus.make_env("CartPole-v1", num_envs=16)
quiet = ludus.Settings(seed=0, verbose=False, eval_frequency=0)

expert = ludus.Trainer(ludus.PPO(batch_size=1024, minibatch_size=256, epochs_per_update=4), env, quiet)
print("expert", expert.train(total_steps=65_536).evaluation)

shown = ludus.record_demonstrations(expert.policy, env, episodes=100, random_actions=0.5)
ludus.write_demonstrations(shown, "demos.safetensors")
print("demonstrations", shown.returns.mean().round(1))

clone = ludus.Trainer(
    ludus.BC(demonstrations="demos.safetensors"), ludus.make_env("CartPole-v1", num_envs=1), quiet, run_dir="runs/clone"
)
print("clone", clone.train(total_steps=20).evaluation)  # 20 passes over the demonstrations

ppo = ludus.PPO(batch_size=1024, minibatch_size=256, epochs_per_update=4, normalize_observations=True)
better = ludus.Trainer(ppo, env, ludus.Settings(seed=0, verbose=False, eval_frequency=0, init_from="runs/clone"))
print("after PPO", better.train(total_steps=32_768).evaluation)
