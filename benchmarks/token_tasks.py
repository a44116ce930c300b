"""PPO on the token tasks, against cloning a policy that is right half of the time, over N seeds. Prints a JSON object.

    .venv/bin/python benchmarks/token_tasks.py --seeds 3 --results token_tasks.jsonl
    .venv/bin/python benchmarks/token_tasks.py --only Copy-v1 --seeds 1
    .venv/bin/python benchmarks/token_tasks.py --no-runs --table

Seeds are 0 .. N-1. Finished runs are kept in a file and not run again. `ppo` is `ludus train` with the words of its
row, which take the task's preset; `bc` clones, with the same network, 100 demonstrations of that run's final policy, of
whose actions half are drawn by chance instead. Every figure is the mean return of 100 greedy episodes of the final
policy on seeds that training never saw; the best return is 1, and guessing earns at most 0.05. CPU seconds are those of
all threads, compilation included.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

import ludus
from kept_runs import kept_runs, parser_of
from ludus.training import config

GOAL = 0.95
DEMONSTRATIONS, RIGHT = 100, 0.5
PASSES = 100
TRANSFORMER = "network=transformer algorithm.network.num_layers=1"
SMALL = "algorithm.network.model_dim=32 algorithm.network.num_heads=2"
TASKS = {
    "Copy-v1": f"{TRANSFORMER} {SMALL}",
    "Addition-v1": TRANSFORMER,
    "Brackets-v1": "network=gru algorithm.network.horizon=32",
    "Sorting-v1": f"{TRANSFORMER} {SMALL} algorithm.network.hidden_sizes=[]",
}
"""The networks, by the words that choose them."""


def parts_of(task: str, seed: int, more: list[str]) -> config.Parts:
    """Return what a command would train with."""
    words = [f"env={task}", f"seed={seed}", "record_behaviour=false", "eval_frequency=0", "verbose=false"]
    return config.build(config.compose([*words, *TASKS[task].split(), *more]))


def measured(trainer: ludus.Trainer, budget: dict[str, Any]) -> float:
    """Train; return the mean return of the final policy."""
    evaluation = trainer.train(**budget).evaluation
    assert evaluation is not None
    return round(evaluation.summary()["mean_return"], 4)


def train(task: str, seed: int, more: list[str]) -> dict[str, Any]:
    """Train with PPO, let its policy demonstrate, and clone it; return what both reached and what it took."""
    began, parts = time.process_time(), parts_of(task, seed, more)
    ppo = ludus.Trainer(parts.algorithm, parts.env, parts.settings)
    reached, between = measured(ppo, parts.budget), time.process_time()
    shown = ludus.record_demonstrations(ppo.policy, parts.env, DEMONSTRATIONS, seed, random_actions=1.0 - RIGHT)
    with tempfile.TemporaryDirectory() as folder:
        ludus.write_demonstrations(shown, Path(folder, "demos.safetensors"))
        cloning = ["algorithm=bc", f"algorithm.demonstrations={folder}/demos.safetensors", f"total_steps={PASSES}"]
        parts = parts_of(task, seed, cloning)
        cloned = measured(ludus.Trainer(parts.algorithm, parts.env, parts.settings), parts.budget)
    return {
        "ppo": reached,
        "bc": cloned,
        "demonstrated": round(float(shown.returns.mean()), 4),
        "reached": reached >= GOAL and reached > cloned,
        "steps": ppo.record.steps,
        "cpu_seconds": round(between - began, 1),
        "bc_cpu_seconds": round(time.process_time() - between, 1),
        "device": jax.devices()[0].platform,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the finished runs as a Markdown table."""
    lines = [
        "| task | words | steps | PPO, each seed | cloning, each seed | demonstrations | reached | CPU seconds, PPO |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, words in TASKS.items():
        runs = sorted((row for row in rows if row["task"] == task), key=lambda row: row["seed"])
        if runs:
            each = [", ".join(f"{run[name]:.2f}" for run in runs) for name in ("ppo", "bc", "demonstrated")]
            lines.append(
                f"| {task} | `{words}` | {runs[0]['steps']:,} | {each[0]} | {each[1]} | {each[2]} "
                f"| {sum(run['reached'] for run in runs)} of {len(runs)} "
                f"| {statistics.median(run['cpu_seconds'] for run in runs):.0f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and print everything."""
    given = parser_of(__doc__, "token_tasks.jsonl", TASKS).parse_args()
    done = kept_runs(given, TASKS, lambda task, seed: train(task, seed, given.set))
    print(table(done) if given.table else json.dumps({"version": ludus.__version__, "runs": done}))


if __name__ == "__main__":
    main()
