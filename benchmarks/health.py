"""What the figures of health cost: the time spent in them, as a share of training. Prints one JSON object.

Example: `python benchmarks/health.py`. The function that computes them is compiled alone, with the shapes and the
compiler's options that it has inside the training loop, and its time is divided by that of an iteration of the loop
without it: a difference between two runs would drown in noise. `share_where_due` is of an iteration that computes
them; `share` is of a run, in which one iteration in `health_frequency` does. The journal's rows are made on the host:
`share_on_host` is the time of making and writing them beyond that of the same rows without health.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import jax
import numpy as np

import ludus
from ludus.runs.folder import RunFolder
from ludus.runs.recorder import Recorder, RecordOptions
from ludus.runtime.compilation import jit
from ludus.runtime.rng import folded
from ludus.training.budget import Budget
from ludus.training.iteration import copied

FREQUENCY = 10
"""The default of `health_frequency`."""
CASES: dict[str, Any] = {
    "ppo CartPole-v1 64 x 32": (
        "CartPole-v1",
        64,
        ludus.PPO(batch_size=64 * 32, minibatch_size=512, epochs_per_update=4),
    ),
    "sac Pendulum-v1": ("Pendulum-v1", 1, ludus.SAC(learning_starts=1000, replay_size=20_000)),
}


def median_seconds(run: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def rows_on_host(rows: dict[str, Any], repeats: int) -> float:
    """Seconds to journal a chunk."""
    with tempfile.TemporaryDirectory() as folder:
        record = Recorder(verbose=False, options=RecordOptions())
        record.folder = RunFolder(Path(folder) / "run")
        record.begin({}, {})
        return median_seconds(lambda: record.iterations_made(dict(rows), 1.0, Budget(10**9, None, None)), repeats)


def measured(name: str, iterations: int, repeats: int) -> dict[str, Any]:
    env_id, num_envs, algorithm = CASES[name]
    env = ludus.make_env(env_id, num_envs=num_envs)
    budget = Budget(10**9, None, None)
    loops = {}
    for frequency in (0, FREQUENCY):
        trainer = ludus.Trainer(
            algorithm, env, ludus.Settings(eval_frequency=0, verbose=False, health_frequency=frequency)
        )
        trainer.loop.settle(budget.total_steps, None)
        loops[frequency] = trainer, trainer.loop.context(budget)
    trainer, context = loops[0]
    state, _ = trainer.loop.repeat(context, trainer.state, 1500 // (num_envs * 32) + 1)  # SAC's warm-up is over
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        state, rows = trainer.loop.repeat(context, state, iterations)
        seconds.append((time.perf_counter() - started) / len(rows["steps"]))

    arrays, runner = context.algorithm, trainer.loop.runner
    learner, keys = state.learner, folded(context.keys, state.iteration)
    length = algorithm.rollout_length(num_envs)
    collect = runner.whole(partial(runner.collect, arrays, env, num_steps=length, threshold=0))
    _, rollout, _ = collect(arrays.policy(learner), state.carry, keys["rollout"])
    made = jit(type(algorithm).update, trainer.loop.options)(arrays, copied(learner), rollout, keys["update"])
    health = jit(type(algorithm).diagnostics, trainer.loop.options)
    inputs = arrays, learner, made.state, made.gradient, rollout
    jax.block_until_ready(health(*inputs))
    nothing = jit(_nothing, trainer.loop.options)
    jax.block_until_ready(nothing(*inputs))
    alone = median_seconds(lambda: jax.block_until_ready(health(*inputs)), 50 * repeats)
    # A call of any program takes a while from Python, which it does not take inside the loop.
    call = median_seconds(lambda: jax.block_until_ready(nothing(*inputs)), 50 * repeats)
    iteration = statistics.median(seconds)

    trainer, context = loops[FREQUENCY]
    _, rows = trainer.loop.repeat(context, trainer.state, FREQUENCY)
    plain = {name: x for name, x in rows.items() if name != "health"}
    on_host = (rows_on_host(rows, repeats) - rows_on_host(plain, repeats)) / len(rows["steps"])
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(made.gradient)),
        "iteration_ms": round(1e3 * iteration, 3),
        "health_ms": round(1e3 * (alone - call), 4),
        "share_where_due": round((alone - call) / iteration, 4),
        "share": round((alone - call) / iteration / FREQUENCY, 5),
        "share_on_host": round(on_host / iteration, 5),
    }


def _nothing(algorithm: Any, old: Any, new: Any, gradient: Any, rollout: Any) -> Any:
    return np.float32(0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    figures = {name: measured(name, given.iterations, given.repeats) for name in CASES}
    print(json.dumps({"device": str(jax.devices()[0]), "health_frequency": FREQUENCY, **figures}, indent=2))


if __name__ == "__main__":
    main()
