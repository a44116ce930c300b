"""How well policies are that learn from a reward which is itself learnt, over N seeds. Prints one JSON object.

    .venv/bin/python benchmarks/rewards.py --seeds 3 --results rewards.jsonl
    .venv/bin/python benchmarks/rewards.py --only pendulum/preferences --seeds 1
    .venv/bin/python benchmarks/rewards.py --no-runs --table

Seeds are 0 .. N-1. Finished runs are kept in a file and not run again. A run is `ludus train` with the words of its
row. The score of a seed is (return - random) / (PPO on the true reward - random): of 100 greedy episodes by the
environment's own reward, on starts that training never saw; PPO on the true reward has the same seed and budget, and a
random policy draws actions uniformly. Demonstrations are 10 episodes of that PPO's policy. CPU seconds are those of all
threads, compilation included.
"""

import json
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

import ludus
from kept_runs import kept_runs, parser_of
from ludus.runs.journal import read_journal
from ludus.training import config

DEMONSTRATIONS = "DEMONSTRATIONS"
"""Stands in the words of a task for the file of its demonstrations."""
PENDULUM, LANDER = "env=Pendulum-v1", "env=gym:LunarLander-v3"


class Task(NamedTuple):
    """One row: the words of the command, and the score that a seed must have."""

    words: str
    least: float | None = None


TASKS = {
    "pendulum/true": Task(PENDULUM),
    "pendulum/preferences": Task(f"{PENDULUM} reward=preferences reward.labels=1000", 0.85),
    "pendulum/preferences-200": Task(f"{PENDULUM} reward=preferences reward.labels=200"),
    "pendulum/preferences-wrong": Task(f"{PENDULUM} reward=preferences reward.label_error=0.1"),
    "pendulum/regression": Task(f"{PENDULUM} reward=regression reward.labels=1000"),
    "pendulum/demonstrations": Task(f"{PENDULUM} reward=demonstrations reward.demonstrations={DEMONSTRATIONS}", 0.80),
    "lander/true": Task(LANDER),
    "lander/preferences": Task(f"{LANDER} reward=preferences reward.labels=1000"),
}
"""Of `lander/...` nothing is asked; they take long, and are run where they are named."""


def train(name: str, seed: int, more: list[str], folder: Path) -> dict[str, Any]:
    """Train once; return what was reached and what it took."""
    words = TASKS[name].words.replace(DEMONSTRATIONS, str(demonstrations(name, seed, folder)))
    run = folder / name.replace("/", "-") / f"seed-{seed}"
    given = [*words.split(), f"seed={seed}", "eval_frequency=0", "record_behaviour=false", "verbose=false", *more]
    parts, began = config.build(config.compose(given)), time.process_time()
    result = ludus.Trainer(parts.algorithm, parts.env, parts.settings, run_dir=run).train(**parts.budget)
    parts.env.close()
    assert result.evaluation is not None
    rows = [row for row in read_journal(run) if row["kind"] == "train"]
    latest = {key: value for row in rows for key, value in row.items()}
    kept = ("labels", "reward_accuracy", "reward_calibration_error", "reward_explained_variance")
    return {
        "return": round(result.evaluation.summary()["mean_return"], 2),
        "steps": result.steps,
        **{key: round(latest[key], 4) for key in kept if key in latest},
        "alarms": sum(row.get("reward_alarm", 0.0) for row in rows),
        "cpu_seconds": round(time.process_time() - began, 1),
        "device": jax.devices()[0].platform,
    }


def demonstrations(name: str, seed: int, folder: Path) -> Path:
    """Return the file of 10 episodes of the policy that learnt from the true reward."""
    path = folder / f"demonstrations-{name.partition('/')[0]}-{seed}.safetensors"
    if DEMONSTRATIONS in TASKS[name].words and not path.exists():
        true = f"{name.partition('/')[0]}/true"
        run = folder / true.replace("/", "-") / f"seed-{seed}"
        if not run.exists():
            train(true, seed, [], folder)
        env = ludus.make_env(TASKS[true].words.split("env=")[1].split()[0], 10)
        made = ludus.record_demonstrations(ludus.load_policy(run), env, 10, seed=seed)
        ludus.write_demonstrations(made, path)
    return path


@cache
def random_return(words: str) -> float:
    """Return what uniformly random actions bring in 100 episodes."""
    parts = config.build(config.compose([*words.split(), "total_steps=1000000", "verbose=false"]))
    trainer = ludus.Trainer(parts.algorithm, parts.env, parts.settings)
    made = ludus.record_demonstrations(trainer.policy, parts.env, 100, seed=10_000, random_actions=1.0)
    parts.env.close()
    return float(made.returns.mean())


def scored(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs with their scores, where the run on the true reward is there."""
    true = {
        (row["task"].partition("/")[0], row["seed"]): row["return"] for row in rows if row["task"].endswith("/true")
    }
    made = []
    for row in rows:
        env = row["task"].partition("/")[0]
        if (env, row["seed"]) in true and row["task"] in TASKS:
            worst = random_return(TASKS[f"{env}/true"].words)
            row = {**row, "score": round((row["return"] - worst) / (true[env, row["seed"]] - worst), 4)}
        made.append(row)
    return made


def table(rows: list[dict[str, Any]]) -> str:
    """Return the finished runs as a Markdown table."""
    lines = [
        "| task | steps | returns | scores | mean | must | held-out accuracy | alarms | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, task in TASKS.items():
        runs = sorted((row for row in rows if row["task"] == name), key=lambda row: row["seed"])
        if not runs:
            continue
        scores = [run.get("score", float("nan")) for run in runs]
        accuracy = ", ".join(f"{run['reward_accuracy']:.3f}" for run in runs if "reward_accuracy" in run)
        cells = (
            name,
            f"{runs[0]['steps']:,}",
            ", ".join(f"{run['return']:g}" for run in runs),
            ", ".join(f"{score:.3f}" for score in scores),
            f"{statistics.mean(scores):.3f}",
            "" if task.least is None else f"{task.least:g}",
            accuracy,
            f"{sum(run['alarms'] for run in runs):.0f}",
            f"{statistics.median(run['cpu_seconds'] for run in runs):.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and print everything."""
    given = parser_of(__doc__, "rewards.jsonl", TASKS).parse_args()
    wanted = [name for name in TASKS if name.startswith("pendulum/")]
    with tempfile.TemporaryDirectory() as scratch:
        done = kept_runs(given, wanted, lambda task, seed: train(task, seed, given.set, Path(scratch)))
    rows = scored(done)
    print(table(rows) if given.table else json.dumps({"version": ludus.__version__, "runs": rows}))


if __name__ == "__main__":
    main()
