"""How fast ludus is beside its peers, in the same run on the same machine. Prints one JSON object.

    .venv/bin/python benchmarks/speed.py --repeats 5 --peers /path/to/peers/bin/python
    .venv/bin/python benchmarks/speed.py cold steady gymnasium sac bipedal pixels act --repeats 5 --peers ...

The measurements, of which `cold` is made if none is named:

    cold        wall-clock seconds of the whole process to a trained CartPole, 100 evaluation episodes included: ludus
                with an empty compilation cache, with the cache that this filled, and as a command with that cache
    steady      steps per second of compiled native CartPole PPO, for three shapes of num_envs x num_steps
    gymnasium   seconds from a process's first line to the end of a PPO run on Gymnasium's CartPole with the Zoo's
                settings, imports and compilation included; ludus with an empty and then with a filled cache
    sac         steps per second of SAC on Pendulum with one gradient step for each environment step. ludus takes both
                32 at a time; the peers one at a time, as is their default, and SBX 32 at a time as well
    bipedal     steps per second of PPO on BipedalWalker with the Zoo's settings and 32 environments: ludus with
                EnvPool, with Gymnasium in its own process (as the peers), and with the workers that it thinks best
    pixels      steps per second of the process's CPU time, of PPO with the Zoo's settings for Atari on pictures that
                cost nothing to make (frames.py); the wall-clock speed is on stderr
    act         microseconds of choosing actions for 8 CartPoles, without the environments; the peers' figure holds
                the values of the states too, which ludus computes later for the whole rollout at once

Each repeat runs the contenders of each measurement one after the other, each in a fresh process; ours.py and peers.py
say what exactly is timed. The peers have an environment of their own, which requirements-peers.txt describes. Seeds
start at 200; the preset's settings were chosen on others. Medians are over repeats. A contender that cannot be run is
null, and `absent` says why. A line on stderr holds all that the contenders of one measurement said in one repeat.
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
from typing import Any, NamedTuple

FIRST_SEED = 200
HERE = Path(__file__).resolve().parent
NAMES = ("cold", "steady", "gymnasium", "sac", "bipedal", "pixels", "act")
STEADY_SHAPES = (("4", "128"), ("64", "32"), ("512", "16"))
BIPEDAL_ITERATION, PIXELS_ITERATION = 65_536, 1_024
SEED = "SEED"
"""Stands for the seed in a command."""

LUDUS = """
import json, sys, time
import ludus
env = ludus.make_env("CartPole-v1", num_envs=8)
ppo = ludus.PPO(learning_rate=3e-3, batch_size=1024, minibatch_size=128, epochs_per_update=8)
settings = ludus.Settings(seed=int(sys.argv[1]), eval_frequency=0, verbose=False)
result = ludus.Trainer(ppo, env, settings).train(total_steps=28_672)
print(json.dumps({"mean_return": float(result.evaluation.returns.mean()), "steps": result.steps}))
"""


class Measurement(NamedTuple):
    """The key by which contenders are compared, and each one's command."""

    figure: str
    commands: dict[str, list[str]]

    @property
    def peers(self) -> list[str]:
        """The contenders that are not ours."""
        return [name for name in self.commands if not name.startswith("ludus")]


def measurements(given: argparse.Namespace) -> dict[str, Measurement]:
    """Return what the command line asks for."""

    def ours(*words: str) -> list[str]:
        return [sys.executable, str(HERE / "ours.py"), *words, "--seed", SEED]

    def peer(*words: str) -> list[str]:
        return [given.peers or "", str(HERE / "peers.py"), *words, "--seed", SEED]

    cold = [sys.executable, "-c", LUDUS, SEED]
    command = [str(Path(sys.executable).parent / "ludus"), "train", "env=CartPole-v1", f"seed={SEED}", "run_dir=run"]
    steady, gymnasium, sac, bipedal, pixels, act = (
        ("--steps", str(steps))
        for steps in (
            given.steady_steps,
            given.gymnasium_steps,
            given.sac_steps,
            given.bipedal_iterations * BIPEDAL_ITERATION,
            given.pixels_iterations * PIXELS_ITERATION,
            given.act_calls,
        )
    )
    in_gymnasium, threads = ours("gymnasium", *gymnasium), ("--threads", str(os.cpu_count()))
    known = {
        "cold": Measurement(
            "wall_seconds",
            {"ludus_cold": cold, "ludus_warm": cold, "ludus_command_warm": command, "rejax": peer("rejax")},
        ),
        **{
            f"steady_{envs}x{steps}": Measurement(
                "steps_per_second",
                {
                    "ludus": ours("steady", envs, steps, *steady),
                    "rejax": peer("rejax", "--steady", envs, steps, *steady),
                },
            )
            for envs, steps in STEADY_SHAPES
        },
        "gymnasium": Measurement(
            "trained_seconds",
            {
                "ludus_cold": in_gymnasium,
                "ludus_warm": in_gymnasium,
                "sb3": peer("sb3", *gymnasium),
                "sbx": peer("sbx", *gymnasium),
            },
        ),
        "sac": Measurement(
            "steps_per_second",
            {
                "ludus_native": ours("sac", "jax:Pendulum-v1", *sac),
                "ludus_gymnasium": ours("sac", "gym:Pendulum-v1", *sac),
                "sb3": peer("sb3", "--task", "sac", *sac),
                "sb3_all_cores": peer("sb3", "--task", "sac", *sac, *threads),
                "sbx": peer("sbx", "--task", "sac", *sac),
                "sbx_by_32": peer("sbx", "--task", "sac", *sac, "--unroll", "32"),
            },
        ),
        "bipedal": Measurement(
            "steps_per_second",
            {
                "ludus_envpool": ours("bipedal", "envpool:BipedalWalker-v3", *bipedal),
                "ludus_gymnasium": ours("bipedal", "gym:BipedalWalker-v3", *bipedal),
                "ludus_gymnasium_workers": ours("bipedal", "gym:BipedalWalker-v3", "--num-workers", "auto", *bipedal),
                "sb3": peer("sb3", "--task", "bipedal", *bipedal),
                "sbx": peer("sbx", "--task", "bipedal", *bipedal),
            },
        ),
        "pixels": Measurement(
            "steps_per_cpu_second",
            {"ludus": ours("pixels", *pixels), "sb3": peer("sb3", "--task", "pixels", *pixels, *threads)},
        ),
        "act": Measurement(
            "microseconds",
            {
                "ludus": ours("act", *act),
                "sb3": peer("sb3", "--task", "act", *act),
                "sbx": peer("sbx", "--task", "act", *act),
            },
        ),
    }
    return {name: known[name] for name in known if name.split("_")[0] in (given.names or ["cold"])}


def timed(command: list[str], environment: dict[str, str], folder: str) -> dict[str, Any]:
    """Run a command; return the JSON object it printed last, with the wall-clock time of the whole process."""
    if not command[0]:
        return {"absent": "no --peers given"}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        return {"absent": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    line = done.stdout.strip().splitlines()[-1]
    return {**(json.loads(line) if line.startswith("{") else {}), "wall_seconds": seconds}


def one_repeat(measurement: Measurement, seed: int) -> dict[str, dict[str, Any]]:
    """Run every contender once, with one compilation cache that is empty at first."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return {
            name: timed([word.replace(SEED, str(seed)) for word in command], environment, folder)
            for name, command in measurement.commands.items()
        }


def summary(measurement: Measurement, repeats: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return medians over repeats, ratios to the best peer, and what they were made from."""
    values = {name: [run[name].get(measurement.figure) for run in repeats] for name in measurement.commands}
    there = {name: [value for value in row if value is not None] for name, row in values.items()}
    medians = {name: statistics.median(row) if row else None for name, row in there.items()}
    is_speed = measurement.figure.startswith("steps_per")
    peers = [medians[name] for name in measurement.peers if medians[name]]
    best = (max(peers) if is_speed else min(peers)) if peers else None
    ratios = {
        name: (median / best if is_speed else best / median) if median and best else None
        for name, median in medians.items()
    }
    returns = {name: [run[name].get("mean_return") for run in repeats] for name in measurement.commands}
    absent = {name: run[name]["absent"] for run in repeats for name in run if "absent" in run[name]}
    return {
        "figure": measurement.figure,
        "medians": {name: rounded(median) for name, median in medians.items()},
        "times_faster_than_best_peer": {name: rounded(ratio, 3) for name, ratio in ratios.items()},
        "values": {name: [rounded(value) for value in row] for name, row in values.items()},
        "mean_returns": {name: row for name, row in returns.items() if any(value is not None for value in row)},
        "absent": absent,
    }


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Keep so many significant digits."""
    return None if value is None else float(f"{value:.{digits}g}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MEASUREMENT", help=f"of {', '.join(NAMES)}; cold if none is named")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", help="Python of an environment with requirements-peers.txt")
    parser.add_argument("--steady-steps", type=int, default=500_000, help="of the warm-up, and of each of 3 timed runs")
    parser.add_argument("--gymnasium-steps", type=int, default=100_000)
    parser.add_argument("--sac-steps", type=int, default=3_000, help="after the warm-up")
    parser.add_argument("--bipedal-iterations", type=int, default=2, help="of 65,536 steps, after the first one")
    parser.add_argument("--pixels-iterations", type=int, default=3, help="of 1,024 steps, after the first one")
    parser.add_argument("--act-calls", type=int, default=5_000)
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no measurement {unknown[0]!r}; there are {', '.join(NAMES)}")
    return given


def main() -> None:
    """Run the repeats and print medians and ratios."""
    given = parse_arguments()
    asked = measurements(given)
    repeats: dict[str, list[dict[str, dict[str, Any]]]] = {name: [] for name in asked}
    load = os.getloadavg()[0]
    for seed in range(FIRST_SEED, FIRST_SEED + given.repeats):
        for name, measurement in asked.items():
            repeats[name].append(one_repeat(measurement, seed))
            print(json.dumps({"measurement": name, "seed": seed, **repeats[name][-1]}), file=sys.stderr, flush=True)
    print(
        json.dumps(
            {
                "seeds": [FIRST_SEED, FIRST_SEED + given.repeats - 1],
                "cores": os.cpu_count(),
                "load_before": load,
                **{name: summary(measurement, repeats[name]) for name, measurement in asked.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
