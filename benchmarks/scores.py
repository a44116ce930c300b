"""What each preset reaches, over N seeds. Prints one JSON object; finished runs are kept in a file and not run again.

    .venv/bin/python benchmarks/scores.py --seeds 3 --results scores.jsonl
    .venv/bin/python benchmarks/scores.py --only BipedalWalker-v3/sac --seeds 1
    .venv/bin/python benchmarks/scores.py --seeds 3 --table docs/en/scores.md --no-runs

Seeds are 0 .. N-1. Every figure is the mean return of 100 greedy episodes on seeds that training never saw. The
reference is RL Baselines3 Zoo's benchmark (one tuned run there; mean and deviation over episodes): the last column
says whether the mean over our seeds is at least its mean less one deviation.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import jax

import ludus
from ludus.training import config

# (environment, algorithm): the zoo's mean and deviation, where it has that pair.
RUNS: dict[tuple[str, str], tuple[float, float] | None] = {
    ("jax:CartPole-v1", "ppo"): (500.0, 0.0),
    ("gym:CartPole-v1", "ppo"): (500.0, 0.0),
    ("Acrobot-v1", "ppo"): (-73.51, 18.20),
    ("MountainCar-v0", "ppo"): (-110.42, 19.47),
    ("MountainCarContinuous-v0", "ppo"): None,
    ("Pendulum-v1", "ppo"): (-172.23, 104.16),
    ("Pendulum-v1", "sac"): (-157.00, 88.71),
    ("LunarLander-v3", "ppo"): (242.12, 31.82),
    ("LunarLanderContinuous-v3", "ppo"): (270.86, 32.07),
    ("BipedalWalker-v3", "ppo"): (287.94, 2.45),
    ("BipedalWalker-v3", "sac"): (297.67, 33.06),
    ("Hopper-v5", "sac"): (2325.55, 1129.68),
    ("HalfCheetah-v5", "sac"): (9535.45, 100.47),
}


PAGE = """# Scores of the presets

Written by `benchmarks/scores.py --seeds 3 --results scores.jsonl --table docs/en/scores.md`. Each figure is the mean
return of 100 greedy episodes of the final policy, on seeds that training never saw; all seeds are shown. The reference
is RL Baselines3 Zoo's benchmark, one tuned run with its deviation over episodes: the last column says whether the mean
over our seeds is at least its mean less one deviation.

"""


def train(env: str, algorithm: str, seed: int, words: list[str]) -> dict[str, Any]:
    """Train a preset once and return what its final evaluation came to."""
    overrides = [f"env={env}", f"algorithm={algorithm}", f"seed={seed}", "verbose=false", *words]
    if config.compose(overrides).convergence.rule == "none":  # other rules judge the evaluations on the way
        overrides.append("eval_frequency=0")
    parts = config.build(config.compose(overrides))
    result = ludus.Trainer(parts.algorithm, parts.env, parts.settings).train(**parts.budget)
    parts.env.close()
    assert result.evaluation is not None
    return {
        "backend": parts.env.id,
        "device": jax.devices()[0].platform,
        "steps": result.steps,
        "seconds": round(result.seconds, 1),
        **result.evaluation.summary(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the finished runs as a Markdown table."""
    lines = [
        "| environment | algorithm | steps | seeds | return of each seed | mean | zoo less one std | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (env, algorithm), zoo in RUNS.items():
        runs = sorted((r for r in rows if (r["env"], r["algorithm"]) == (env, algorithm)), key=lambda r: r["seed"])
        if not runs:
            continue
        returns = [run["mean_return"] for run in runs]
        mean, goal = statistics.mean(returns), None if zoo is None else zoo[0] - zoo[1]
        lines.append(
            f"| {env} ({'; '.join(sorted({run['backend'].partition(':')[0] for run in runs}))}) | {algorithm.upper()} "
            f"| {runs[0]['steps']:,} | {runs[0]['seed']}-{runs[-1]['seed']} "
            f"| {', '.join(f'{value:.1f}' for value in returns)} | {mean:.1f} "
            f"| {'none' if goal is None else f'{goal:.1f}'} "
            f"| {'' if goal is None else 'yes' if mean >= goal else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("scores.jsonl"))
    parser.add_argument("--only", nargs="*", help="of the pairs environment/algorithm")
    parser.add_argument("--table", type=Path, help="write a Markdown table of all finished runs here")
    parser.add_argument("--no-runs", action="store_true", help="run nothing: print what is finished")
    parser.add_argument("--set", nargs="*", default=[], help="more key=value words, such as num_workers=4")
    given = parser.parse_args()
    done = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    known = {(row["env"], row["algorithm"], row["seed"]) for row in done}
    wanted = [pair for pair in RUNS if not given.only or "/".join(pair) in given.only]
    for env, algorithm in [] if given.no_runs else wanted:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            if (env, algorithm, seed) in known:
                continue
            row = {"env": env, "algorithm": algorithm, "seed": seed, **train(env, algorithm, seed, given.set)}
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            done.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    if given.table:
        given.table.write_text(PAGE + table(done))
    print(json.dumps({"version": ludus.__version__, "runs": done}))


if __name__ == "__main__":
    main()
