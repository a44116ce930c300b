"""What each preset reaches, over N seeds. Prints one JSON object; finished runs are kept in a file and not run again.

.venv/bin/python benchmarks/scores.py --seeds 5 --results scores.jsonl
"""

import argparse
import json
import sys
from pathlib import Path

import ludus
from ludus import config

RUNS = [("jax:CartPole-v1", "ppo"), ("gym:CartPole-v1", "ppo"), ("jax:Pendulum-v1", "ppo")]


def train(env: str, algorithm: str, seed: int) -> dict[str, float]:
    """Train a preset once and return what its final evaluation came to."""
    overrides = [f"env={env}", f"algorithm={algorithm}", f"seed={seed}", "eval_frequency=0", "verbose=false"]
    parts = config.build(config.compose(overrides))
    result = ludus.Trainer(parts.algorithm, parts.env, **parts.options).train(**parts.budget)
    parts.env.close()
    return {"steps": result.steps, "seconds": round(result.seconds, 1), **result.evaluation.summary()}


def main() -> None:
    """Run what is missing and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("scores.jsonl"))
    given = parser.parse_args()
    done = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    known = {(row["env"], row["algorithm"], row["seed"]) for row in done}
    for env, algorithm in RUNS:
        for seed in range(given.seeds):
            if (env, algorithm, seed) in known:
                continue
            row = {"env": env, "algorithm": algorithm, "seed": seed, **train(env, algorithm, seed)}
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            done.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    print(json.dumps({"version": ludus.__version__, "runs": done}))


if __name__ == "__main__":
    main()
