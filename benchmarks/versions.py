"""Two versions of ludus on the same work, in turn: does a change cost time? Prints one JSON object.

    git worktree add /tmp/before COMMIT
    .venv/bin/python benchmarks/versions.py /tmp/before . --repeats 5
    .venv/bin/python benchmarks/versions.py /tmp/before . --only cold warm

Each version is a checkout; its package and its own `benchmarks/ours.py` run in fresh processes of this Python. What is
compared is the processor's time of all threads of a process, which other programs disturb far less than the clock on
the wall: `seconds` are medians over repeats, `ratio` is the second version's by the first's, the median of the ratios
of each repeat. Seeds start at 200.

    cold        import, compile, train CartPole, evaluate 100 episodes; the compile cache is empty
    warm        the same with the cache that this filled
    steady      1,000,000 steps of compiled CartPole PPO with 64 environments and 32 steps, compile cache filled
    gymnasium   100,000 steps of PPO on Gymnasium's CartPole with the Zoo's settings, compile cache filled
    sac         SAC on JAX's Pendulum, 32 steps and gradient steps at a time, compile cache filled
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from speed import LUDUS

WORK = {
    "cold": ["-c", LUDUS],
    "warm": ["-c", LUDUS],
    "steady": ["benchmarks/ours.py", "steady", "64", "32", "--steps", "1000000"],
    "gymnasium": ["benchmarks/ours.py", "gymnasium", "--steps", "100000"],
    "sac": ["benchmarks/ours.py", "sac", "jax:Pendulum-v1", "--steps", "8000"],
}
FIRST_SEED = 200


def main() -> None:
    """Run every piece of work with both versions in each repeat."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs=2, type=Path, help="two checkouts: before and after")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WORK, default=list(WORK))
    given = parser.parse_args()
    taken: dict[str, list[list[float]]] = {name: [] for name in given.only}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(given.repeats):
            for name in given.only:
                order = (0, 1) if repeat % 2 == 0 else (1, 0)
                seconds = {
                    i: cpu_seconds(name, given.versions[i].resolve(), Path(folder) / f"{i}", repeat) for i in order
                }
                taken[name].append([seconds[0], seconds[1]])
                print(f"{name} {repeat}: {seconds[0]:.2f} s, {seconds[1]:.2f} s", file=sys.stderr)
    print(json.dumps({name: summary(pairs) for name, pairs in taken.items()}))


def cpu_seconds(name: str, version: Path, folder: Path, repeat: int) -> float:
    """Return the processor's seconds of one process; the cache of the work is filled by an untimed one first."""
    words = WORK[name] + (["--seed"] if name not in ("cold", "warm") else []) + [str(FIRST_SEED + repeat)]
    cache = folder / ("warm" if name in ("cold", "warm") else name)
    if name == "cold":
        cache = folder / f"cold-{repeat}"
    elif not cache.exists():
        run(words, version, cache)
    return run(words, version, cache)


def run(words: list[str], version: Path, cache: Path) -> float:
    """Return what a process of that version takes."""
    cache.mkdir(parents=True, exist_ok=True)
    own = {"PYTHONPATH": str(version / "src"), "XDG_CACHE_HOME": str(cache)}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=version, env=kept | own, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def summary(pairs: list[list[float]]) -> dict[str, object]:
    """Return medians, and the median of ratios."""
    before, after = zip(*pairs, strict=True)
    return {
        "seconds": [round(statistics.median(before), 2), round(statistics.median(after), 2)],
        "ratio": round(statistics.median(b / a for a, b in pairs), 3),
        "ratios": [round(b / a, 3) for a, b in pairs],
    }


if __name__ == "__main__":
    main()
