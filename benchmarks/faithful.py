"""Is EnvPool's environment the one that Gymnasium has under the same id? Prints one JSON object.

Compares the spaces, the returns and lengths of random episodes, where those start and end, and the score of one
policy, trained in EnvPool (or loaded), in both. What differs by more than chance is said in `differences`.

.venv/bin/python benchmarks/faithful.py BipedalWalker-v3 Hopper-v5 --steps 500000
.venv/bin/python benchmarks/faithful.py BipedalWalker-v3 --policy runs/walker
"""

import argparse
import json
from typing import Any

import numpy as np
from scipy import stats

import ludus
from ludus.spaces import Discrete

IDS = ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"]
NUM_ENVS = 16
ALPHA = 0.01
"""A difference that chance makes less often than this, over all comparisons of an id together, is called one."""


def random_episodes(env: Any, count: int, seed: int) -> dict[str, np.ndarray]:
    """Play the same number of random episodes in every environment, so that short ones do not weigh more."""
    random, space = np.random.default_rng(seed), env.action_space
    n, wanted = env.num_envs, count // env.num_envs
    rows: dict[str, list] = {name: [] for name in ("return", "length", "start", "end", "terminated")}
    rows["start"] += list(np.array(env.reset(range(seed, seed + n))))
    returns, lengths, played = np.zeros(n), np.zeros(n, int), np.zeros(n, int)
    while played.min() < wanted:
        if isinstance(space, Discrete):
            action = random.integers(space.n, size=n).astype(np.int32)
        else:
            action = random.uniform(*space.bounds, size=(n, *space.shape)).astype(np.float32)
        step = env.step(action)
        returns, lengths = returns + step.reward, lengths + 1
        ended = step.terminated | step.truncated
        for i in np.flatnonzero(ended & (played < wanted)):
            values = returns[i], lengths[i], np.array(step.obs[i]), np.array(step.next_obs[i]), step.terminated[i]
            for row, value in zip(rows.values(), values, strict=True):
                row.append(value)
        played += ended
        returns, lengths = np.where(ended, 0, returns), np.where(ended, 0, lengths)
    return {name: np.array(row) for name, row in rows.items()}


def mean(values: np.ndarray) -> dict[str, float]:
    """Mean and half of its 95 % confidence interval."""
    return {"mean": round(float(values.mean()), 2), "ci95": round(float(1.96 * stats.sem(values)), 2)}


def unlikeness(one: np.ndarray, other: np.ndarray) -> float:
    """Chance of so unlike samples if both are of one distribution; of several columns, of the most unlike one."""
    columns = zip(np.atleast_2d(one.T), np.atleast_2d(other.T), strict=True)
    chances = [float(stats.ks_2samp(a, b).pvalue) for a, b in columns]
    return min(1.0, min(chances) * len(chances))


def trained(env: Any, steps: int, seed: int) -> ludus.Policy:
    ppo = ludus.PPO(batch_size=128 * NUM_ENVS, minibatch_size=256)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(seed=seed, verbose=False, eval_frequency=0))
    trainer.train(total_steps=steps)
    return trainer.policy


def compare(id: str, given: argparse.Namespace) -> dict[str, Any]:
    pool, gym = ludus.make_env(f"envpool:{id}", NUM_ENVS), ludus.make_env(f"gym:{id}", NUM_ENVS)
    both = {"envpool": pool, "gymnasium": gym}
    random = {
        name: random_episodes(env, given.random_episodes, i * 10_000) for i, (name, env) in enumerate(both.items())
    }
    chance = {
        f"random {what}": unlikeness(random["envpool"][what], random["gymnasium"][what])
        for what in ("return", "length", "start", "end", "terminated")
    }
    policy = ludus.load_policy(given.policy) if given.policy else trained(pool, given.steps, seed=0)
    played = {name: ludus.evaluate(policy, env, given.episodes, seed=i) for i, (name, env) in enumerate(both.items())}
    chance["policy return"] = unlikeness(played["envpool"].returns, played["gymnasium"].returns)
    chance["policy length"] = unlikeness(played["envpool"].lengths, played["gymnasium"].lengths)
    difference = played["envpool"].returns.mean() - played["gymnasium"].returns.mean()
    width = 1.96 * np.hypot(*(stats.sem(result.returns) for result in played.values()))
    return {
        "env": id,
        "same_spaces": pool.observation_space == gym.observation_space and pool.action_space == gym.action_space,
        "random_return": {name: mean(rows["return"]) for name, rows in random.items()},
        "random_length": {name: mean(rows["length"]) for name, rows in random.items()},
        "random_episodes": given.random_episodes,
        "policy_return": {name: mean(result.returns) for name, result in played.items()},
        "policy_length": {name: mean(result.lengths) for name, result in played.items()},
        "policy_difference": {"mean": round(float(difference), 2), "ci95": round(float(width), 2)},
        "policy_episodes": given.episodes,
        "chance": {name: float(f"{value:.2g}") for name, value in chance.items()},
        "differences": [name for name, value in chance.items() if value < ALPHA / len(chance)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", default=IDS)
    parser.add_argument("--random-episodes", type=int, default=320)
    parser.add_argument("--episodes", type=int, default=100, help="episodes of the policy in each library")
    parser.add_argument("--steps", type=int, default=500_000, help="steps that the policy is trained for")
    parser.add_argument("--policy", help="a run folder or a policy file, instead of training")
    given = parser.parse_args()
    print(json.dumps({"version": ludus.__version__, "envs": [compare(id, given) for id in given.ids]}))


if __name__ == "__main__":
    main()
