"""Whether the defaults that Python users meet learn on returns of any size. Prints JSON lines.

    .venv/bin/python benchmarks/returns.py --seeds 3 --results returns.jsonl
    .venv/bin/python benchmarks/returns.py --only "sac/mlp, longer" --returns 1 --seeds 1

The same task three times, its rewards multiplied so that returns are about 1, 100 and 10,000. Seeds are 0 .. N-1. The
figure is the mean return of the final policy's evaluation, in the task's own units, so that all three can be compared.
Finished runs are kept in a file and not run again.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import ludus
from ludus.envs.base import Environment
from ludus.types import Step


class Task:
    """One row: an environment, an algorithm with its defaults, and how long it learns."""

    def __init__(self, env: str, algorithm: Any, num_envs: int, steps: int, largest: float, goal: float):
        """Keep them; `largest` is about the size of the task's own returns, `goal` what a policy should reach."""
        self.env, self.algorithm, self.num_envs, self.steps = env, algorithm, num_envs, steps
        self.largest, self.goal = largest, goal


TASKS = {
    "ppo/mlp": Task("CartPole-v1", ludus.PPO(), 16, 131_072, 500.0, 450.0),
    "ppo/gru": Task("CartPoleNoVelocity-v1", ludus.PPO(network=ludus.GRU()), 16, 131_072, 500.0, 200.0),
    "ppo/gru, shared": Task(
        "CartPoleNoVelocity-v1", ludus.PPO(network=ludus.GRU(shared=True)), 16, 131_072, 500.0, 200.0
    ),
    "ppo/transformer": Task(
        "CartPoleNoVelocity-v1",
        ludus.PPO(network=ludus.Transformer(context_length=8, model_dim=32, num_layers=1, num_heads=2)),
        16,
        131_072,
        500.0,
        200.0,
    ),
    "sac/mlp": Task("Pendulum-v1", ludus.SAC(), 4, 20_000, 1500.0, -250.0),
    "sac/mlp, longer": Task("Pendulum-v1", ludus.SAC(), 4, 60_000, 1500.0, -250.0),
    "sac/mlp, cooler": Task("Pendulum-v1", ludus.SAC(alpha=0.003), 4, 20_000, 1500.0, -250.0),
}
RETURNS = (1.0, 100.0, 10_000.0)


@dataclass(frozen=True)
class Scaled(Environment):
    """An environment whose rewards are multiplied."""

    env: Environment
    factor: float

    def __post_init__(self) -> None:
        """Be what the environment within is."""
        names = ("observation_space", "action_space", "max_episode_steps")
        vars(self).update({name: getattr(self.env, name) for name in names})

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """Start an episode."""
        return self.env.reset(key)

    def step(self, state: Any, action: Any, key: jax.Array) -> tuple[Any, Step]:
        """Advance one step and multiply its reward."""
        state, step = self.env.step(state, action, key)
        return state, step._replace(reward=step.reward * self.factor)


def train(task: Task, size: float, seed: int) -> dict[str, Any]:
    """Train once; return the evaluation's mean return in the task's own units."""
    factor, began = size / task.largest, time.process_time()
    env = ludus.make_env(Scaled(ludus.make_env(task.env).env, factor), num_envs=task.num_envs)
    settings = ludus.Settings(seed=seed, verbose=False, eval_frequency=0, record_behaviour=False)
    result = ludus.Trainer(task.algorithm, env, settings).train(total_steps=task.steps)
    assert result.evaluation is not None
    value = float(result.evaluation.returns.mean()) / factor
    seconds = round(time.process_time() - began, 1)
    return {"value": round(value, 1), "reached": value >= task.goal, "steps": result.steps, "cpu_seconds": seconds}


def main() -> None:
    """Run what is missing and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path("returns.jsonl"))
    parser.add_argument("--returns", type=float, nargs="*", default=RETURNS, help="sizes of returns")
    parser.add_argument("--only", nargs="*", choices=TASKS, metavar="TASK", help=f"of {', '.join(TASKS)}")
    given = parser.parse_args()
    done = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    known = {(row["task"], row["returns"], row["seed"]) for row in done}
    for name in given.only or TASKS:
        for size in given.returns:
            for seed in range(given.seeds):
                if (name, size, seed) not in known:
                    row = {"task": name, "returns": size, "seed": seed, **train(TASKS[name], size, seed)}
                    done.append(row)
                    with given.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    for row in done:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
