"""Four runs, two settings with two seeds each, compared side by side. On the command line:

ludus train env=CartPole-v1 -m seed=0,1 algorithm.learning_rate=3e-3,3e-4 run_dir=runs/sweep
ludus compare runs/sweep/*
"""

import itertools
from pathlib import Path

import ludus
from ludus.cli.main import main

env = ludus.make_env("CartPole-v1", num_envs=8)
for rate, seed in itertools.product((3e-3, 3e-4), (0, 1)):
    ppo = ludus.PPO(learning_rate=rate, batch_size=1024, minibatch_size=128)  # another rate compiles nothing new
    settings = ludus.Settings(seed=seed, verbose=False)
    ludus.Trainer(ppo, env, settings, run_dir=f"runs/sweep/rate{rate}-seed{seed}").train(total_steps=20_480)

main(["compare", *map(str, sorted(Path("runs/sweep").iterdir()))])
