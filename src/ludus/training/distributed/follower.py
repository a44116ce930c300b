"""A process that trains under the lead of process 0: it makes the same state and takes part in every program."""

import signal
from pathlib import Path

import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.envs.base import AnyEnv
from ludus.runtime.compilation import enable_compilation_cache
from ludus.training.budget import Budget
from ludus.training.distributed.hosts import joined, leave
from ludus.training.loop import Loop
from ludus.training.preflight import check_parts, with_threshold
from ludus.training.settings import Settings
from ludus.types import LudusError

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that are passed on to the leader, which saves and ends the run for all."""


class LedTrainer:
    """Takes the place of a `Trainer` in a process that writes nothing and decides nothing."""

    def __init__(self, algorithm: Algorithm, env: AnyEnv, settings: Settings, *, run_dir: Path | None = None):
        """Check what can be checked; `run_dir` is for the leader alone."""
        check_parts(algorithm, env, settings)
        enable_compilation_cache()
        env = env.led(list(settings.curriculum))
        self.loop = Loop(algorithm, env, with_threshold(settings, env.return_threshold))

    def follow(self, budget: Budget) -> int:
        """Do what the leader says until it says that the run is over; return the exit code that it gives."""
        team, loop, context, state = joined(), self.loop, self.loop.context(budget), None
        assert team is not None
        for number in HEEDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, team.pass_on)
        while (command := team.next_command())["do"] != "end":
            what = command["do"]
            if what == "begin":
                loop.take_over(command["scaling"])
                loop.settle(budget, tuple((name, value) for name, value in command["options"]))
                state = loop.begin(context, loop.first_learner())
            elif state is None:
                raise LudusError(f"hosts: process 0 said {what} before the run was begun")
            elif what == "take":
                state = loop.shared(state)
            elif what == "gather":
                loop.gathered(state)
            elif what == "run":
                loop.use_numbers(command["hyperparameters"])
                state, _ = loop.restocked(state, int(np.asarray(state.iteration)))
                state, _ = loop(context, state, command["length"])
            else:
                raise LudusError(f"hosts: process 0 said {what}, which this version does not know")
        leave()
        return int(command["code"])
