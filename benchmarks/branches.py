"""What advantages from Monte-Carlo rollouts cost: seconds of an iteration of PPO. Prints one JSON object for each case.

    .venv/bin/python benchmarks/branches.py --branches 8 --depth 5 --iterations 30

The cases are `gae` and `monte_carlo`, on CartPole with 8 environments, the same batch and the same epochs; `times` is
how many times as long the second takes. `cpu_seconds` counts the time of all threads of the process, which other
programs disturb least. The first iterations, with compilation in them, are not measured. --depth 0 plays branches to
the end of the episode, whose length grows as the policy learns.
"""

import argparse
import json
import time
from typing import Any

import ludus

COMMON = {"batch_size": 2048, "minibatch_size": 64, "epochs_per_update": 10}
"""PPO's own defaults."""


def measured(env: str, iterations: int, **options: Any) -> dict[str, float]:
    """Return the seconds of an iteration, after as many that are not counted."""
    trainer = ludus.Trainer(
        ludus.PPO(**COMMON, **options), ludus.make_env(env, num_envs=8), ludus.Settings(verbose=False, seed=0)
    )
    trainer.final_episodes = 0
    steps = COMMON["batch_size"] * iterations
    trainer.train(total_steps=steps)
    wall, processor = time.perf_counter(), time.process_time()
    trainer.train(total_steps=2 * steps)
    each = (time.perf_counter() - wall) / iterations, (time.process_time() - processor) / iterations
    return {"seconds": round(each[0], 4), "cpu_seconds": round(each[1], 4)}


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="jax:CartPole-v1")
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=30)
    given = parser.parse_args()
    plain = measured(given.env, given.iterations)
    print(json.dumps({"case": "gae", **plain}))
    branches = {"branches": given.branches, "branch_depth": given.depth or None}
    own = measured(given.env, given.iterations, advantages="monte_carlo", **branches)
    times = round(own["cpu_seconds"] / plain["cpu_seconds"], 2)
    print(json.dumps({"case": "monte_carlo", **branches, **own, "times": times}))


if __name__ == "__main__":
    main()
