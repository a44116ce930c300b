"""Measure how much of a run's time the training thread spends on its storage. Prints one JSON object.

Example: `python benchmarks/storage_time.py 3`. Each of so many seeds trains CartPole-v1 for a fixed time, with a
checkpoint every two seconds, copied to an S3 server on loopback (moto, on the same cores). Counted is every moment in
which training waits for the part of storage that is on its thread; the wait at the end is counted apart.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import pytest
import stores

import ludus
from ludus.runs.storage.tracker import StorageTracker

SECONDS = 20.0


def timed(kind: type, spent: dict[str, float]) -> None:
    """Let the tracker's three calls be timed."""
    for name in ("begin", "wake", "end"):
        call = getattr(kind, name)

        def counted(self, *words, call=call, name=name):
            began = time.perf_counter()
            try:
                return call(self, *words)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

        setattr(kind, name, counted)


def once(seed: int, folder: Path, url: str | None) -> float:
    """Train for a while; return the environment steps per second."""
    options = ludus.CheckpointOptions(every_iterations=0, every_minutes=1 / 30, keep_last=5)
    storage = ludus.StorageOptions(url=url, every_seconds=1.0)
    settings = {"eval_frequency": 0, "eval_episodes_final": 0, "record_behaviour": False, "verbose": False}
    made = ludus.Trainer(
        ludus.PPO(),
        ludus.make_env("jax:CartPole-v1", num_envs=16),
        ludus.Settings(seed=seed, checkpoint=options, storage=storage, **settings),
        run_dir=folder / f"{seed}-{'copied' if url else 'alone'}",
    )
    with contextlib.closing(made.env):
        result = made.train(max_seconds=SECONDS)
    return result.steps / made.record.elapsed


def main() -> None:
    """Train each seed with and without storage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=3)
    seeds = range(parser.parse_args().seeds)
    spent: dict[str, float] = {}
    timed(StorageTracker, spent)
    alone, copied, shares, ends = [], [], [], []
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder, stores.s3(patch) as url:
        for seed in seeds:
            alone.append(once(seed, Path(folder), None))
            spent.clear()
            copied.append(once(seed, Path(folder), url))
            shares.append((spent["begin"] + spent["wake"]) / SECONDS)
            ends.append(spent["end"])
    print(
        json.dumps(
            {
                "cores": os.cpu_count(),
                "share of the training thread": [round(share, 5) for share in shares],
                "wait at the end in seconds": [round(seconds, 2) for seconds in ends],
                "steps per second alone": round(statistics.median(alone)),
                "steps per second copied": round(statistics.median(copied)),
            }
        )
    )


if __name__ == "__main__":
    main()
