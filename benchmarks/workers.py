"""What worker processes cost and what they gain, and why there are no threads. Prints one JSON object.

Example: `python benchmarks/workers.py --repeats 7`. `round_trip_us` is a step of environments that do nothing, one in
each worker. `step_us` is a step of a batch of 16 under random actions, in this process, over threads, and in workers.
Ways are timed in turns; the figure is the lowest of the repeats, which other programs on the machine disturb least.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import gymnasium
import numpy as np

import ludus

NUM_ENVS = 16
ENVIRONMENTS = ("gym:CartPole-v1", "gym:LunarLander-v3", "gym:BipedalWalker-v3")


class Idle(gymnasium.Env):
    """Does nothing."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)
    obs = np.zeros(4, np.float32)

    def reset(self, *, seed=None, options=None):
        """Start."""
        return self.obs, {}

    def step(self, action):
        """Go on."""
        return self.obs, 0.0, False, False, {}


class Threaded:
    """A batch cut into parts that are stepped by a thread each."""

    def __init__(self, name: str, num_threads: int):
        """Make the parts."""
        self.parts = [ludus.make_env(name, NUM_ENVS // num_threads) for _ in range(num_threads)]
        self.pool = ThreadPoolExecutor(num_threads)
        for part in self.parts:
            part.reset(list(range(part.num_envs)))

    def step(self, action: np.ndarray) -> None:
        """Step every part and wait for all."""
        list(self.pool.map(lambda part, rows: part.step(rows), self.parts, np.split(action, len(self.parts))))

    def close(self) -> None:
        """Close every part."""
        for part in self.parts:
            part.close()


def step_us(env, actions: np.ndarray) -> float:
    began = time.perf_counter()
    for action in actions:
        env.step(action)
    return 1e6 * (time.perf_counter() - began) / len(actions)


def round_trips(counts: list[int], repeats: int) -> dict[int, float]:
    from workers import Idle as Sendable  # by its module's name: this one is __main__

    envs = {count: ludus.make_env(Sendable, count, num_workers=count) for count in counts}
    lowest = dict.fromkeys(envs, np.inf)
    for count, env in envs.items():
        env.reset(list(range(count)))
    for _ in range(repeats):
        for count, env in envs.items():
            lowest[count] = min(lowest[count], step_us(env, np.zeros((1000, count), np.int32)))
    for env in envs.values():
        env.close()
    return {count: round(value, 1) for count, value in lowest.items()}


def gains(name: str, cores: int, repeats: int) -> dict[str, float]:
    ways = {
        "in this process": ludus.make_env(name, NUM_ENVS),
        f"{cores} threads": Threaded(name, cores),
        f"{cores} workers": ludus.make_env(name, NUM_ENVS, num_workers=cores),
    }
    rng, lowest = np.random.default_rng(0), dict.fromkeys(ways, np.inf)
    space = ways["in this process"].action_space
    for env in ways.values():
        if not isinstance(env, Threaded):
            env.reset(list(range(NUM_ENVS)))
    for _ in range(repeats):
        shape = (100, NUM_ENVS, *space.shape)
        actions = rng.uniform(-1, 1, shape).astype(np.float32) if space.shape else rng.integers(0, space.n, shape)
        for way, env in ways.items():
            lowest[way] = min(lowest[way], step_us(env, actions))
    for env in ways.values():
        env.close()
    return {way: round(value, 1) for way, value in lowest.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    result = {
        "cores": cores,
        "round_trip_us": round_trips([1, 2, 4], given.repeats),
        "step_us": {name: gains(name, cores, given.repeats) for name in ENVIRONMENTS},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
