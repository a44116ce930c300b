"""Break environment workers at random steps and see that nothing false is learnt. Prints one JSON object.

Example: `python benchmarks/faults.py 600 --log faults.jsonl`: 100 faults of each of six kinds. Every fault is a line of
the log; a run that was stopped goes on where it was. After each fault the rollout is checked row by row: every row that
counts pairs a state with its own successor, every episode that counts is whole, and as many processes run as should.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from worker_envs import LENGTH, Ledger
from worker_runs import Runner, assert_true_pairs, descendants

import ludus

KINDS = {
    "raises": ("raise", "exit"),
    "dies": ("kill",),
    "hangs": ("stop", "loop"),
    "segfaults": ("segfault",),
    "answers garbage": ("shape", "type"),
    "resets slowly": ("slow reset",),
}
TIMEOUT, NUM_ENVS, NUM_WORKERS = 1.0, 4, 2


class Warnings(logging.Handler):
    """Keeps what was logged."""

    def __init__(self):
        """Nothing yet."""
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record):
        """Keep it."""
        self.messages.append(record.getMessage())


def inject(run: Runner, folder: Path, number: int, log: Warnings) -> dict:
    """Order one fault in a rollout of random length, and check what came of it."""
    name = list(KINDS)[number % len(KINDS)]
    kind = KINDS[name][number // len(KINDS) % len(KINDS[name])]
    rng = np.random.default_rng(number)
    assert_true_pairs(run.rollout(int(rng.integers(1, 2 * LENGTH)))[0])
    log.messages.clear()
    (folder / kind).write_text("0" if kind == "slow reset" else str(rng.integers(2 * LENGTH)))
    began = time.perf_counter()
    steps, stats = run.rollout(int(rng.integers(2 * LENGTH, 4 * LENGTH)))
    seconds = time.perf_counter() - began
    kept = assert_true_pairs(steps)
    assert not (folder / kind).exists(), "it was committed"
    assert len(log.messages) == 1 and "seed " in log.messages[0], log.messages
    assert (~steps.valid).any(axis=0).sum() == NUM_ENVS // NUM_WORKERS
    assert stats.steps == kept and stats.length_sum == LENGTH * stats.episodes
    if stats.episodes:
        assert stats.return_min == stats.return_max == LENGTH * (LENGTH - 1) / 2
    assert len(descendants()) == NUM_WORKERS
    return {"fault": number, "kind": name, "order": kind, "seconds": round(seconds, 3), "rows": kept}


def main() -> None:
    """Go through the faults that the log does not hold yet, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=600)
    parser.add_argument("--log", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--max-seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    began = time.monotonic()
    done = [json.loads(line) for line in given.log.read_text().splitlines()] if given.log.exists() else []
    warnings = Warnings()
    logging.getLogger("ludus").addHandler(warnings)
    logging.getLogger("ludus").propagate = False
    with tempfile.TemporaryDirectory() as folder, given.log.open("a") as log:
        env = ludus.make_env(Ledger, NUM_ENVS, num_workers=NUM_WORKERS, worker_timeout=TIMEOUT, folder=folder)
        run = Runner(env)
        for number in range(len(done), given.count):
            if time.monotonic() - began > given.max_seconds:
                break
            done.append(inject(run, Path(folder), number, warnings))
            log.write(json.dumps(done[-1]) + "\n")
            log.flush()
        env.close()
    assert not descendants()
    kinds = {name: [row["seconds"] for row in done if row["kind"] == name] for name in KINDS}
    summary = {
        name: {"faults": len(seconds), "longest_rollout_seconds": max(seconds, default=0)}
        for name, seconds in kinds.items()
    }
    print(json.dumps({"faults": len(done), "false_rows": 0, "rows": sum(r["rows"] for r in done), "kinds": summary}))


if __name__ == "__main__":
    main()
