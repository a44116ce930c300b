"""How long it takes to a trained CartPole, from a cold process. Prints one JSON object.

    .venv/bin/python benchmarks/speed.py --repeats 5 --peers /path/to/peers/bin/python

Each repeat runs, one after the other and each in a fresh process: ludus with an empty compilation cache, ludus with the
cache that this filled, the command line with that cache, and the peers (from an environment of their own, which
requirements-peers.txt describes). Seeds start at 200; the preset's settings were chosen on others. Every figure is the
median over repeats of the wall-clock time of the whole process, training and 100 evaluation episodes included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST_SEED = 200
HERE = Path(__file__).resolve().parent

LUDUS = """
import json, sys, time
import ludus
env = ludus.make_env("CartPole-v1", num_envs=8)
ppo = ludus.PPO(learning_rate=3e-3, batch_size=1024, minibatch_size=128, epochs_per_update=8)
result = ludus.Trainer(ppo, env, seed=int(sys.argv[1]), eval_frequency=0, verbose=False).train(total_steps=28_672)
print(json.dumps({"mean_return": float(result.evaluation.returns.mean()), "steps": result.steps}))
"""


def timed(command: list[str], environment: dict[str, str], folder: str) -> dict[str, float]:
    """Run a command; return the JSON object it printed last, with the wall-clock time of the whole process."""
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - started
    line = done.stdout.strip().splitlines()[-1]
    return {**(json.loads(line) if line.startswith("{") else {}), "wall_seconds": seconds}


def one_repeat(seed: int, peers: str | None, peer_names: list[str]) -> dict[str, dict[str, float]]:
    """Run every contender once."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        ludus = [sys.executable, "-c", LUDUS, str(seed)]
        command_line = [str(Path(sys.executable).parent / "ludus"), "train", "env=CartPole-v1", f"seed={seed}"]
        runs = {
            "ludus_cold": timed(ludus, environment, folder),
            "ludus_warm": timed(ludus, environment, folder),
            "ludus_command_warm": timed([*command_line, f"run_dir={folder}/run"], environment, folder),
        }
        for name in peer_names if peers else []:
            command = [peers, str(HERE / "peers.py"), name, "--seed", str(seed)]
            runs[name] = timed([str(word) for word in command], environment, folder)
    return runs


def main() -> None:
    """Run the repeats and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", help="Python of an environment with requirements-peers.txt")
    parser.add_argument("--peer-names", nargs="*", default=["rejax"], help="of rejax, sb3, sbx")
    given = parser.parse_args()
    repeats = []
    for seed in range(FIRST_SEED, FIRST_SEED + given.repeats):
        repeats.append(one_repeat(seed, given.peers, given.peer_names))
        print(json.dumps({"seed": seed, **repeats[-1]}), file=sys.stderr, flush=True)
    medians = {name: statistics.median(run[name]["wall_seconds"] for run in repeats) for name in repeats[0]}
    returns = {name: [run[name].get("mean_return") for run in repeats] for name in repeats[0]}
    best = min((medians[name] for name in given.peer_names if name in medians), default=None)
    ratios = {name: round(best / seconds, 2) for name, seconds in medians.items()} if best else None
    print(
        json.dumps(
            {
                "seeds": [FIRST_SEED, FIRST_SEED + given.repeats - 1],
                "cores": os.cpu_count(),
                "median_wall_seconds": {name: round(seconds, 2) for name, seconds in medians.items()},
                "mean_returns": returns,
                "times_faster_than_best_peer": ratios,
            }
        )
    )


if __name__ == "__main__":
    main()
