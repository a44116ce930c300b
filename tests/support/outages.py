"""A run that trains while MLflow's server comes and goes at random."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mlflow_server import Proxy, Reader

import ludus
from ludus.runs.folder import read_identity
from ludus.runs.journal import read_journal
from ludus.runs.trackers.base import TrackingOptions
from ludus.runs.trackers.mlflow.tracker import MLflowTracker

MODES = {"refuse": 0.0, "error": 0.0, "hang": 0.0, "slow": 17.0, "lost": 0.0, "auth": 0.0, "pass": 0.0}
KINDS = ("at the start", "in the middle", "comes and goes", "all the time")
ALGORITHM = ludus.PPO(batch_size=8192, minibatch_size=256, epochs_per_update=10)
"""Some ten iterations in a second, as many runs make."""
SECONDS = 12.0
MOST_SHARE = 0.01
"""Of the time that a run takes, calls of its tracker may take so much."""


def schedule(kind: str, dice: random.Random) -> list[tuple[float, str]]:
    """Return from when on the server behaves how."""
    troubles = [mode for mode in MODES if mode != "pass"]
    if kind == "at the start":
        return [(0.0, dice.choice(troubles)), (dice.uniform(2, SECONDS), "pass")]
    if kind == "in the middle":
        begin = dice.uniform(1, SECONDS - 3)
        return [(0.0, "pass"), (begin, dice.choice(troubles)), (begin + dice.uniform(0.5, 6), "pass")]
    if kind == "all the time":
        return [(0.0, dice.choice(troubles))]
    times = sorted(dice.uniform(0, SECONDS) for _ in range(8))
    return [(0.0, dice.choice(list(MODES))), *((t, dice.choice(list(MODES))) for t in times)]


class Timed(MLflowTracker):
    """Counts the time that the training thread spends in it, the wait at the end aside."""

    seconds = 0.0

    def begin(self, folder: Any) -> None:
        began = time.perf_counter()
        super().begin(folder)
        self.seconds += time.perf_counter() - began

    def wake(self) -> None:
        began = time.perf_counter()
        super().wake()
        self.seconds += time.perf_counter() - began


def outage(seed: int, server: str, reader: Reader, folder: Path) -> dict[str, Any]:
    """Train once; return a row for the log."""
    dice = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    plan = schedule(kind, dice)
    proxy, over = Proxy(server), threading.Event()
    os.environ["MLFLOW_TRACKING_URI"] = proxy.uri
    proxy.set(plan[0][1], MODES[plan[0][1]])

    def misbehave() -> None:
        begun = time.monotonic()
        for at, mode in plan[1:]:
            if over.wait(max(0.0, begun + at - time.monotonic())):
                return
            proxy.set(mode, MODES[mode])

    run = folder / f"outage-{seed}"
    env = ludus.make_env("jax:CartPole-v1", 8)
    options = {"tracking": TrackingOptions(tensorboard=False), "eval_frequency": 0, "verbose": False}
    made = ludus.Trainer(ALGORITHM, env, ludus.Settings(seed=seed, **options), run_dir=run)
    made.final_episodes = 0
    tracker = Timed(lambda text: None)
    made.record.trackers = [tracker]
    thread = threading.Thread(target=misbehave)
    row: dict[str, Any] = {"seed": seed, "kind": kind, "plan": plan, "failure": None}
    try:
        thread.start()
        result = made.train(max_seconds=SECONDS)  # its compilation included
        share = round(tracker.seconds / result.seconds, 5)
        row |= {"rows": result.iterations, "share": share, "stopped_by": result.stopped_by}
        if row["share"] > MOST_SHARE:
            row["failure"] = f"{row['share']:.1%} of the time was spent in the tracker"
    except Exception as error:  # whatever it is: training must not stop
        row["failure"] = f"training stopped: {error!r}"
    finally:
        over.set()
        thread.join()
    proxy.set("pass")
    done = subprocess.run(
        [sys.executable, "-m", "ludus", "track", str(run)], capture_output=True, text=True, check=False
    )
    row["sent_later"] = done.stdout.strip()
    row["failure"] = row["failure"] or (done.stderr if done.returncode else None) or difference(reader, run)
    proxy.close()
    return row


def difference(reader: Reader, run: Path) -> str | None:
    """Say what of a run's journal MLflow has not, or has twice."""
    found = [made for made in reader.runs(read_identity(run)["id"]) if "ludus.superseded_by" not in made.data.tags]
    if len(found) != 1 or found[0].info.status != "FINISHED":
        return f"{len(found)} runs, {[made.info.status for made in found]}"
    journal = read_journal(run)
    for key in ("policy_loss", "steps_per_second", "num_updates"):
        name = {"num_updates": "updates"}.get(key, key)
        expected = [(row["steps"], row[name]) for row in journal if row["kind"] == "train"]
        points = [point[:2] for point in reader.points(found[0], key)]
        if points != expected:
            return f"{key}: {len(points)} points for {len(expected)} rows"
    return None
