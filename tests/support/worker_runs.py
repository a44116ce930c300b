"""Rollouts of environment workers, and whether what they hold is true; `benchmarks/faults.py` uses it too."""

import os
from pathlib import Path

import jax
import numpy as np

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.rollout import host
from ludus.runtime.rng import stream
from ludus.types import RolloutKeys, Spec

PPO = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 1}
NUM_STEPS = 24


class Runner:
    """Collects one rollout after the other."""

    def __init__(self, env, ppo=None, whole_episodes=False):
        self.env, self.whole = env, whole_episodes
        ppo = ppo or ludus.PPO(**PPO)
        self.algorithm = as_arrays(ppo)
        spec = Spec(env.observation_space, env.action_space, env.num_envs)
        self.policy = ppo.policy(ppo.init(stream(0, "init"), spec))
        self.carry = host.begin(self.algorithm, env, self.policy, stream(0, "begin"))
        self.count = 0

    def rollout(self, num_steps=NUM_STEPS):
        keys = RolloutKeys(*(jax.random.fold_in(stream(1, name), self.count) for name in RolloutKeys._fields))
        self.count += 1
        self.carry, rollout, stats = host.collect(
            self.algorithm, self.env, self.policy, self.carry, keys, num_steps, self.whole
        )
        return jax.tree.map(np.asarray, rollout.steps), stats


def assert_true_pairs(steps) -> int:
    """Every valid row pairs a state with its own successor, and goes on where the row before it ended."""
    valid = steps.valid if steps.valid is not None else np.ones_like(steps.terminated)
    ended = steps.terminated | steps.truncated
    for t, i in zip(*np.nonzero(valid), strict=True):
        np.testing.assert_array_equal(steps.next_obs[t, i] - steps.obs[t, i], [0, 0, 1])
        assert steps.reward[t, i] == steps.obs[t, i, 2]
        if t + 1 < len(valid) and valid[t + 1, i]:
            if ended[t, i]:
                assert steps.obs[t + 1, i, 2] == 0
            else:
                np.testing.assert_array_equal(steps.obs[t + 1, i], steps.next_obs[t, i])
        if t + 1 < len(valid) and not valid[t + 1, i] and not ended[t, i]:
            raise AssertionError("a valid row is followed by a lost one in the same episode")
        if t and not valid[t - 1, i]:
            assert steps.obs[t, i, 2] == 0, "after a lost episode another one begins"
    return int(valid.sum())


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and was not waited for does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants() -> set[int]:
    """Return every process that this one has started, and those that they have."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended by now
            continue
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return {pid for pid in found if is_running(pid)}
