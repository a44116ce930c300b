"""Environments for the tests of workers: what they show tells where they are, and they fail on demand.

They are in a module of their own because workers import it.
"""

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np

FAULTS = ("raise", "exit", "kill", "segfault", "stop", "loop", "shape", "type", "slow reset")
LENGTH = 7
"""Steps of an episode; its return is 0 + 1 + ... + 6."""


class Ledger(gymnasium.Env):
    """Shows (seed, episode, step), so that rows of two episodes cannot be taken for neighbours.

    A file in `folder` whose name is a kind of fault is the order to commit it, after as many steps as it says: the
    environment that takes it away does. A name that begins with "always" stays.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, folder: str = "", length: int = LENGTH, slow_start: float = 0.0, broken_start: str = ""):
        self.folder, self.length, self.slow_start = Path(folder or "/nonexistent"), length, slow_start
        self.seed, self.episode, self.waited, self.resets = 0, -1, {}, 0
        if broken_start:
            self.commit(broken_start)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            time.sleep(self.slow_start)
            self.slow_start, self.seed, self.episode = 0.0, seed % 65536, -1
        if self.resets and self.order("slow reset"):
            time.sleep(1000)
        self.resets += 1
        self.episode, self.t = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action):
        for kind in (*FAULTS[:-1], "hold"):
            if self.order(kind):
                return self.commit(kind)
        self.t += 1
        info = {"step": self.t, "sometimes": 2.0 * self.t, "text": "x", "array": np.zeros(3)}
        if self.t % 2:
            del info["sometimes"]
        return self.observation(), float(self.t - 1), self.t == self.length, False, info

    def observation(self):
        return np.array([self.seed, self.episode, self.t], np.float32)

    def order(self, kind: str) -> bool:
        if (self.folder / f"always {kind}").exists():
            return True
        try:
            wait = int((self.folder / kind).read_text() or 0)
            self.waited[kind] = self.waited.get(kind, 0) + 1
            if self.waited[kind] <= wait:
                return False
            (self.folder / kind).unlink()
        except OSError:
            self.waited.pop(kind, None)
            return False
        return True

    def commit(self, kind: str):
        if kind == "raise":
            raise ValueError("out of fuel")
        if kind == "exit":
            sys.exit(3)
        if kind in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        if kind == "segfault":
            ctypes.string_at(0)
        while kind == "loop":
            pass
        while kind == "hold":  # in C, with the interpreter's lock: no Python thread of this process can help
            ctypes.PyDLL(None).sleep(1000)
        obs = np.zeros(5, np.float32) if kind == "shape" else self.observation()
        return obs, "many" if kind == "type" else 0.0, False, False, {}


class Rich(gymnasium.Env):
    """Dict observations, Tuple actions; random, and ends at random."""

    observation_space = gymnasium.spaces.Dict(
        {"image": gymnasium.spaces.Box(0, 255, (4, 4), np.uint8), "speed": gymnasium.spaces.Box(-1, 1, (2,))}
    )
    action_space = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,))))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation(), {}

    def step(self, action):
        choice, force = action
        reward = float(choice) + float(np.sum(force))
        return self.observation(), reward, bool(self.np_random.random() < 0.2), False, {"luck": self.np_random.random()}

    def observation(self):
        return {
            "image": self.np_random.integers(0, 256, (4, 4), np.uint8),
            "speed": self.np_random.uniform(-1, 1, 2).astype(np.float32),
        }


class Masking(Ledger):
    """Says which actions are allowed."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, {"action_mask": np.array([1, self.episode % 2], np.int8)}

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "action_mask": np.array([self.t % 2, 1], np.int8)}


class AsksForJax(Ledger):
    """Says whether JAX is imported where it is."""

    def step(self, action):
        return *super().step(action)[:4], {"jax": "jax" in sys.modules}


class Slow(Ledger):
    """Takes 3 ms for a step."""

    def step(self, action):
        time.sleep(0.003)
        return super().step(action)


class Starter(Ledger):
    """Starts three processes that know of no end: one of its group, one that has left it, and a fork of itself."""

    def __init__(self, folder: str):
        super().__init__()
        command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        pids = [subprocess.Popen(command, start_new_session=is_apart).pid for is_apart in (False, True)]
        pids.append(os.fork())
        if pids[-1] == 0:
            time.sleep(600)
            os._exit(0)
        (Path(folder) / f"{os.getpid()}.pids").write_text(" ".join(map(str, pids)))


class FailsToStart(Ledger):
    """Ends its process when it is made, if a file `start` is there, which it takes away."""

    def __init__(self, folder: str):
        super().__init__()
        with contextlib.suppress(FileNotFoundError):
            (Path(folder) / "start").unlink()
            os._exit(3)


class Draws(gymnasium.Env):
    """Draws from a generator that its whole process shares: in every step, in some episodes, at starts, or never.

    What is drawn at a start shows from the fourth step on: before that the episode looks as if it had drawn nothing.
    """

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, when: str = "never", generator: str = "numpy"):
        self.when, self.draw = when, random.random if generator == "python" else np.random.random

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.start = 0, float(self.np_random.uniform(-1, 1))
        self.draws = self.when == "step" or (self.when == "some" and self.np_random.random() < 0.3)
        self.hidden = self.draw() if self.when == "start" else 0.0
        return self.observation(), {}

    def step(self, action):
        self.t += 1
        luck = self.draw() if self.draws else 0.0
        return self.observation(), luck + self.hidden * (self.t > 3), self.t == 5, False, {}

    def observation(self):
        return np.array([self.start, self.t], np.float32)
