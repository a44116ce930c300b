"""How long a report of a long run takes, and how large it is. Prints one JSON object.

    .venv/bin/python benchmarks/report.py --rows 1000000

A journal of so many rows is written first, each as wide as PPO's (22 figures with all their digits), with an
evaluation after every thousand. `seconds` is the time from the command to the written page, by the clock, in a
process of its own, Python's start included; the PNG files are not counted. On a machine that does other work besides,
`processor_seconds` is what says how long it would take.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from ludus.runs.journal import JOURNAL, line_of

COLUMNS = (
    "episode_return_mean", "episode_return_min", "episode_return_max", "episode_length_mean", "approx_kl",
    "clip_fraction", "entropy", "explained_variance", "gradient_norm", "learning_rate", "policy_loss", "total_loss",
    "value_loss",
)  # fmt: skip
"""What a row of PPO's journal has besides counts and times."""


def write_run(folder: Path, rows: int) -> None:
    """Write a run folder with a journal of so many iterations."""
    folder.mkdir()
    (folder / "config.yaml").write_text("env: jax:CartPole-v1\nseed: 0\nalgorithm:\n  name: ppo\n")
    (folder / "run.json").write_text(json.dumps({"id": "benchmark", "seed": 0, "status": "finished"}))
    random = np.random.default_rng(0)
    with (folder / JOURNAL).open("wb") as file:
        for i in range(1, rows + 1):
            counts = {
                "kind": "train",
                "iteration": i,
                "steps": 1024 * i,
                "episodes": 5 * i,
                "updates": 64 * i,
            }
            values = random.standard_normal(len(COLUMNS), np.float32).tolist()
            times = {"elapsed_seconds": round(0.01 * i, 6), "steps_per_second": round(1e5 + values[0], 1)}
            file.write(line_of(i, {**counts, **dict(zip(COLUMNS, values, strict=True)), **times}))
            if i % 1000 == 0:
                evaluation = {"eval_return_mean": values[0], "eval_return_std": 1.0, "eval_episodes": 10}
                file.write(line_of(i, {**counts, "kind": "evaluation", **evaluation, **times}))


def measure(folder: Path) -> tuple[float, float]:
    """Make the report in a process of its own; return the seconds that it took, by the clock and of the processor."""
    began, spent = time.perf_counter(), _processor_seconds()
    subprocess.run(
        [sys.executable, "-m", "ludus", "report", str(folder), "--no-images"], check=True, capture_output=True
    )
    return round(time.perf_counter() - began, 2), round(_processor_seconds() - spent, 2)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ludus-report-") as scratch:
        folder = Path(scratch, "run")
        write_run(folder, given.rows)
        seconds, processor = zip(*(measure(folder) for _ in range(given.repeats)), strict=True)
        size = (folder / "report" / "index.html").stat().st_size
        journal = (folder / JOURNAL).stat().st_size
    told = {"rows": given.rows, "journal_mb": round(journal / 1e6, 1), "page_mb": round(size / 1e6, 2)}
    times = {
        "seconds": seconds,
        "processor_seconds": processor,
        "cpu_cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(told | times))


if __name__ == "__main__":
    main()
