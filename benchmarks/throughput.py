"""Steady speed of CartPole PPO on whatever device JAX finds, after compilation. Prints one JSON object.

Example: `python benchmarks/throughput.py --num-envs 32768 --num-steps 32 --total-steps 400000000`. Each repeat is one
call of `train`, its final evaluation of 100 episodes included; the figure is the median.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import jax

import ludus


def main() -> None:
    """Warm up, then time the repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    batch = given.num_envs * given.num_steps
    ppo = ludus.PPO(batch_size=batch, minibatch_size=batch // given.minibatches, epochs_per_update=given.epochs)
    env = ludus.make_env("CartPole-v1", num_envs=given.num_envs)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, verbose=False))
    # The first budget settles how the program is compiled, so it is the whole one.
    trainer.train(total_steps=given.total_steps)
    speeds = []
    for _ in range(given.repeats):
        done, started = trainer.record.steps, time.perf_counter()
        result = trainer.train(total_steps=done + given.total_steps)
        speeds.append((result.steps - done) / (time.perf_counter() - started))
    figures = {
        "device": str(jax.devices()[0]),
        "jax": jax.__version__,
        **vars(given),
        "steps_per_second": round(statistics.median(speeds)),
        "mean_return": float(result.evaluation.returns.mean()),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
