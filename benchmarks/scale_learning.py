"""Whether several devices learn what one learns: curves over seeds on each. Prints one JSON object.

    .venv/bin/python benchmarks/scale_learning.py 5 --devices 1 8 --results scale_learning.jsonl
    .venv/bin/python benchmarks/scale_learning.py 5 --only cartpole

Seeds are 0 .. N-1. A curve is the mean return of 20 episodes of the policy's own best actions, at even distances. At
each point the interquartile mean over the seeds has a 95% bootstrap interval; `within` counts the points at which the
mean of each number of devices lies in the interval of the first. The devices are simulated. Each curve is a process of
its own; what is finished is kept in a file and not run again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

POINTS, EPISODES = 8, 20
CASES = ("cartpole", "pendulum")


def curve(case: str, devices: int, seed: int) -> list[float]:
    """Train once, and return the mean return at each point."""
    import ludus

    if case == "cartpole":
        env, steps = ludus.make_env("CartPole-v1", 16), 32_768
        ppo = ludus.PPO(
            batch_size=1024, minibatch_size=128, epochs_per_update=8, learning_rate=1e-3, anneal_learning_rate=False
        )
    else:
        env, steps = ludus.make_env("Pendulum-v1", 16), 131_072
        ppo = ludus.PPO(
            batch_size=2048, minibatch_size=256, epochs_per_update=8, learning_rate=1e-3, gamma=0.9, entropy_coef=0.0,
            anneal_learning_rate=False,
        )  # fmt: skip
    settings = ludus.Settings(
        seed=seed, devices=devices, eval_frequency=0, eval_episodes_final=0, verbose=False, record_behaviour=False,
        num_checkpoints=0,
    )  # fmt: skip
    trainer, found = ludus.Trainer(ppo, env, settings), []
    for point in range(POINTS):
        trainer.train(total_steps=steps // POINTS * (point + 1))
        found.append(round(float(trainer.evaluate(EPISODES).returns.mean()), 2))
    return found


def compared(rows: list[dict[str, Any]], devices: list[int]) -> dict[str, Any]:
    """Return means and intervals of one case, and at how many points means lie in the interval of the first number."""
    from ludus.runs.statistics import estimate

    points: dict[int, list[Any]] = {}
    for count in devices:
        curves = [row["curve"] for row in rows if row["devices"] == count]
        points[count] = [estimate(values) for values in zip(*curves, strict=True)]
    found: dict[str, Any] = {}
    for count in devices:
        at = points[count]
        found[str(count)] = {
            "means": [round(x.value, 1) for x in at],
            "intervals": [[round(y, 1) for y in x.interval] if x.interval else None for x in at],
        }
        for one, other in ((devices[0], count), (count, devices[0])):
            if one != other:
                pairs = zip(points[one], points[other], strict=True)
                inside = [a.interval is not None and a.interval[0] <= b.value <= a.interval[1] for a, b in pairs]
                found[f"means on {other} within the intervals on {one}"] = f"{sum(inside)} of {len(inside)}"
    return found


def main() -> None:
    """Run what is missing and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="?", default=5)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--results", type=Path, default=Path("scale_learning.jsonl"))
    parser.add_argument("--curve", nargs=3, metavar=("CASE", "DEVICES", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.curve:
        case, devices, seed = given.curve
        print(json.dumps(curve(case, int(devices), int(seed))))
        return
    rows = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    known = {(row["case"], row["devices"], row["seed"]) for row in rows}
    asked = [(case, count, seed) for case in given.only for seed in range(given.seeds) for count in given.devices]
    for case, count, seed in asked:
        if (case, count, seed) not in known:
            words = [sys.executable, __file__, "--curve", case, str(count), str(seed)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            made = json.loads(done.stdout.splitlines()[-1])
            rows.append({"case": case, "devices": count, "seed": seed, "curve": made})
            with given.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    wanted = [row for row in rows if (row["case"], row["devices"], row["seed"]) in asked]
    of_cases = {case: [row for row in wanted if row["case"] == case] for case in given.only}
    print(json.dumps({case: compared(mine, given.devices) for case, mine in of_cases.items()}, indent=1))


if __name__ == "__main__":
    main()
