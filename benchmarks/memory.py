"""What policies with a memory reach on tasks that need one, over N seeds. Prints one JSON object.

    .venv/bin/python benchmarks/memory.py --seeds 3 --results memory.jsonl
    .venv/bin/python benchmarks/memory.py --only tmaze-50/ppo/gru --seeds 1
    .venv/bin/python benchmarks/memory.py --no-runs --table

Seeds are 0 .. N-1. Finished runs are kept in a file and not run again. Every figure is of 100 greedy episodes of the
final policy, on seeds that training never saw: their mean return, or for the T-maze the share of right turns. A run is
`ludus train` with the words of its row. CPU seconds are those of all threads, compilation included.
"""

import json
import statistics
import time
from typing import Any, NamedTuple

import jax

import ludus
from kept_runs import kept_runs, parser_of
from ludus.training import config

TRANSFORMER = "algorithm.network.model_dim=32 algorithm.network.num_layers=1 algorithm.network.num_heads=2"
"""Sizes that train in seconds on one core."""
BLIND_CARTPOLE, BLIND_PENDULUM = "env=CartPoleNoVelocity-v1", "env=PendulumNoVelocity-v1 algorithm=sac"
MAZE_20, MAZE_50 = "env=TMaze-v1 env_options.length=20", "env=TMaze-v1 env_options.length=50 total_steps=1_024_000"


class Task(NamedTuple):
    """One row: the words of the command, what is measured, and the goal."""

    words: str
    figure: str
    least: float | None = None
    most: float | None = None

    def reaches(self, value: float) -> bool:
        """Whether a seed is where it should be."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


RIGHT = "info/is_success/last"
TASKS = {
    "cartpole/ppo/gru": Task(f"{BLIND_CARTPOLE} network=gru", "mean_return", 450),
    "cartpole/ppo/transformer": Task(
        f"{BLIND_CARTPOLE} network=transformer algorithm.network.context_length=8 {TRANSFORMER} total_steps=409_600",
        "mean_return",
        450,
    ),
    "cartpole/ppo/memoryless": Task(f"{BLIND_CARTPOLE} network=mlp", "mean_return", most=200),
    "tmaze-20/ppo/gru": Task(f"{MAZE_20} network=gru algorithm.network.horizon=32", RIGHT, 0.95),
    "tmaze-20/ppo/transformer": Task(f"{MAZE_20} network=transformer {TRANSFORMER}", RIGHT, 0.95),
    "tmaze-20/ppo/memoryless": Task(f"{MAZE_20} network=mlp", RIGHT, most=0.65),
    "tmaze-50/ppo/gru": Task(f"{MAZE_50} network=gru algorithm.network.horizon=64", RIGHT, 0.95),
    "tmaze-50/ppo/transformer": Task(
        f"{MAZE_50} network=transformer algorithm.network.context_length=64 {TRANSFORMER}", RIGHT, 0.95
    ),
}


def train(task: Task, seed: int, more: list[str]) -> dict[str, Any]:
    """Train once; return the figure and what it took."""
    words = [*task.words.split(), f"seed={seed}", "eval_frequency=0", "record_behaviour=false", "verbose=false", *more]
    parts, began = config.build(config.compose(words)), time.process_time()
    result = ludus.Trainer(parts.algorithm, parts.env, parts.settings).train(**parts.budget)
    parts.env.close()
    assert result.evaluation is not None
    value = result.evaluation.summary()[task.figure]
    return {
        "value": round(value, 4),
        "reached": task.reaches(value),
        "steps": result.steps,
        "cpu_seconds": round(time.process_time() - began, 1),
        "device": jax.devices()[0].platform,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the finished runs as a Markdown table."""
    lines = [
        "| task, algorithm, network | steps | each seed | mean | goal | reached | CPU seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, task in TASKS.items():
        runs = sorted((row for row in rows if row["task"] == name), key=lambda row: row["seed"])
        if not runs:
            continue
        values = [run["value"] for run in runs]
        goal = f"at least {task.least:g}" if task.least is not None else f"at most {task.most:g}"
        lines.append(
            f"| {name.replace('/', ', ')} | {runs[0]['steps']:,} | {', '.join(f'{value:g}' for value in values)} "
            f"| {statistics.mean(values):.4g} | {goal} | {sum(run['reached'] for run in runs)} of {len(runs)} "
            f"| {statistics.median(run['cpu_seconds'] for run in runs):.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and print everything."""
    given = parser_of(__doc__, "memory.jsonl", TASKS).parse_args()
    done = kept_runs(given, TASKS, lambda task, seed: train(TASKS[task], seed, given.set))
    print(table(done) if given.table else json.dumps({"version": ludus.__version__, "runs": done}))


if __name__ == "__main__":
    main()
