"""Kill training on a GPU, resume it with empty caches, and compare with a run left in peace. Prints one JSON object.

Example: `python benchmarks/gpu_kills.py 100 --log gpu_kills.jsonl`. Every kill is a line of the log; a script that was
stopped goes on where it was. A run in peace is made for each case first. Every trial begins the same run in a new
process that has no compiled program, only the kernels that the run in peace chose; it is killed at a random moment and
resumed in a process that has nothing but the run folder. State and journal must be equal bit by bit at its end.
`on_cpu` says by how much the mean returns of the final policy differ between the GPU and a CPU.
"""

import concurrent.futures
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go

SIDE_BY_SIDE = 6
CASES = {
    "ppo": ["env=jax:CartPole-v1", "num_envs=4096", "algorithm.batch_size=131072", "algorithm.minibatch_size=32768"],
    "gru": [
        *("env=jax:CartPole-v1", "num_envs=256", "algorithm/network=gru"),
        *("algorithm.batch_size=8192", "algorithm.minibatch_size=2048"),
    ],
    "ppo deterministic": [
        *("env=jax:CartPole-v1", "num_envs=1024", "deterministic=true"),
        *("algorithm.batch_size=32768", "algorithm.minibatch_size=8192"),
    ],
    "sac": ["env=jax:Pendulum-v1", "algorithm=sac", "num_envs=64", "algorithm.replay_size=100_000"],
}
STEPS = {"ppo": 131_072 * 120, "gru": 8192 * 120, "ppo deterministic": 32_768 * 120, "sac": 64 * 32 * 40}
WORDS = ["seed=3", "eval_frequency=10", "checkpoint.every_iterations=5", "checkpoint.keep_last=2", "verbose=false"]


def environment(cache: Path) -> dict[str, str]:
    """Return the variables of a process that has this cache folder and no other."""
    ours = {"XDG_CACHE_HOME": str(cache), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    source = str(Path(__file__).resolve().parents[1] / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    return kept | ours | {"PYTHONPATH": path}


def started(words: list[str], cache: Path, log: Path) -> subprocess.Popen:
    with log.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "ludus", *words], env=environment(cache), stdout=said, stderr=said
        )


def train_words(case: str, run: Path) -> list[str]:
    return ["train", *CASES[case], *WORDS, f"total_steps={STEPS[case]}", f"run_dir={run}"]


class Reference:
    """A run that nobody has disturbed."""

    def __init__(self, case: str, scratch: Path):
        """Train it, from empty caches."""
        self.case, self.run, self.cache, log = (
            case,
            scratch / f"{case}-peace",
            scratch / f"{case}-cache",
            scratch / case,
        )
        began = time.monotonic()
        if started(train_words(case, self.run), self.cache, log).wait():
            raise SystemExit(log.read_text()[-2000:])
        self.seconds = time.monotonic() - began
        print(case, round(self.seconds, 1), (self.run / "run.json").read_text()[-300:], file=sys.stderr)
        self.on_cpu = self._difference_on_cpu()

    def _difference_on_cpu(self) -> float:
        """Return by how much the evaluations of the final policy on the GPU and on a CPU differ, at most."""
        returns = []
        for platform in ("cuda", "cpu"):
            words = [sys.executable, "-m", "ludus", "evaluate", str(self.run), "--episodes", "20", "--json"]
            variables = environment(self.cache) | {"JAX_PLATFORMS": platform}
            done = subprocess.run(words, env=variables, capture_output=True, text=True, check=True)
            returns.append(json.loads(done.stdout)["mean_return"])
        return abs(returns[0] - returns[1])

    def compare(self, run: Path) -> str | None:
        """Return in what a run differs from this one."""
        from ludus.training.state_arrays import differences
        from ludus.training.verify import journal_of, state_of

        if unlike := differences(state_of(self.run), state_of(run)):
            return f"state: {unlike[0]}"
        return None if journal_of(run) == journal_of(self.run) else "journal"


def trial(number: int, reference: Reference, scratch: Path) -> dict[str, Any]:
    """Kill a run once, resume it elsewhere, compare."""
    case, here = reference.case, scratch / str(number)
    run, log = here / "run", here / "log"
    here.mkdir()
    if (chosen := reference.cache / "ludus" / "autotuning").exists():
        shutil.copytree(chosen, here / "first" / "ludus" / "autotuning")
    process = started(train_words(case, run), here / "first", log)
    wait = random.Random(number).uniform(0.2, 0.7) * reference.seconds
    try:
        process.wait(wait)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    killed = process.wait() == -signal.SIGKILL
    checkpoints = run / "checkpoints"
    step = (
        max((int(p.name) for p in checkpoints.iterdir() if p.name.isdigit()), default=0) if checkpoints.exists() else 0
    )
    failure = None
    if killed and not run.exists():
        shutil.rmtree(here)
        return {"number": number, "kind": f"{case}, before the folder", "step": 0, "failure": None}
    if killed and (code := started(["resume", str(run), "verbose=false"], here / "second", log).wait()):
        failure = f"exit code {code}: {log.read_text()[-500:]}"
    failure = failure or reference.compare(run)
    if failure is None:
        shutil.rmtree(here)
    kind = f"{case}, {'killed' if killed else 'not killed'}"
    return {"number": number, "kind": kind, "step": step, "on_cpu": reference.on_cpu, "failure": failure}


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        scratch = Path(folder)
        references = list(pool.map(lambda case: Reference(case, scratch), CASES))
        numbers = range(start, stop)
        yield from pool.map(lambda i: trial(i, references[i % len(references)], scratch), numbers)


if __name__ == "__main__":
    go(__doc__, 100, trials)
