"""Recordings of what a run has learnt: one episode of each policy that it keeps, recorded when the run is over.

So a report shows behaviour without anything having been played by hand. Nothing is played before training is done, and
how much is played, for how long and how large, has bounds. What plays a JAX environment is compiled meanwhile, by
another thread: it is pure, and so disturbs nothing.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.critic import Critic
from ludus.algorithms.policy import Policy, load_policy
from ludus.envs.base import AnyEnv
from ludus.rollout.runner import runner
from ludus.runs.episode_file import EPISODES, About, Episode, write_episode
from ludus.runtime.compilation import ASIDE, compile_clock
from ludus.spaces import leaves
from ludus.training.checkpoint_writer import BEST, POLICIES
from ludus.training.record_episode import play_episode
from ludus.training.settings import Settings
from ludus.training.trained import Trained

FINAL_LABEL = "final"
SECONDS, SHARE = 5.0, 0.02
"""For so long, or for this share of the run's time if that is longer, a run plays when it is over."""
MOST_COMPILE_SECONDS = 30.0
"""Where the first iteration took longer to compile nothing is recorded: one more program would take as long."""
MOST_STEPS, MOST_BYTES = 2_000, 1 << 23
"""Steps and bytes of observations that a recorded episode has at most: it is cut there."""


class Showing:
    """Records the episodes of one run."""

    def __init__(self, algorithm: Algorithm, env: AnyEnv, settings: Settings, say: Callable[[str], None]):
        """Begin with nothing played; what is compiled from now on is this run's."""
        self.is_wanted, self._say = settings.record_behaviour, say
        self.algorithm, self.env = algorithm, env
        self.seed, self.num_checkpoints = settings.seed, settings.num_checkpoints
        self._compiled_before = compile_clock().total
        self._preparation: threading.Thread | None = None

    def prepare(self, trained: Callable[[], Trained]) -> None:
        """Let what plays be compiled, once; call it when the run has made its first iterations."""
        if not self.is_wanted or self._preparation is not None or not runner(self.env).is_pure:
            return
        if compile_clock().total - self._compiled_before > MOST_COMPILE_SECONDS:
            self.is_wanted = False
            return
        policy, critic, _ = trained()

        def play_a_step() -> None:
            with contextlib.suppress(Exception):  # it will be said when an episode is wanted
                play_episode(policy, self.env, critic, most=1)

        self._preparation = threading.Thread(target=play_a_step, name=ASIDE)
        self._preparation.start()

    def record(
        self,
        run: Path,
        final: Callable[[], Trained],
        at: dict[str, dict[str, int]],
        seconds: float,
        is_to_leave: Callable[[], bool],
    ) -> None:
        """Play and write down an episode of each policy, the final one first; training is over, and saved.

        Args:
            run: the run folder, in which the other policies are.
            final: returns what the run ended with.
            at: the run's totals when each policy was saved, by the policy's label.
            seconds: how long the run has taken.
            is_to_leave: asked now and then whether to stop.
        """
        if not self.is_wanted:
            return
        deadline = time.monotonic() + max(SECONDS, SHARE * seconds)

        def enough() -> bool:
            return time.monotonic() > deadline or is_to_leave()

        if self._preparation is not None:
            self._preparation.join(deadline - time.monotonic())
        try:
            policy, critic, _ = final()
            for kept, about in self._policies(run, policy, at):
                if enough():
                    return
                episode = self._played(kept, critic, about, enough)
                write_episode(episode, run / EPISODES / f"{about.label}.safetensors")
        except Exception as error:  # whatever an environment raises: the run itself is done, and good
            reason = (str(error) or type(error).__name__).splitlines()[0][:200]
            self._say(f"{self.env.id}: no episode of it could be recorded ({reason})")

    def _played(self, policy: Policy, critic: Critic | None, about: About, enough: Callable[[], bool]) -> Episode:
        """Return the first episode of the run's own evaluations, as one of its policies plays it."""
        shown = leaves(self.env.observation_space)
        size = sum(np.dtype(leaf.dtype).itemsize * max(1, math.prod(leaf.shape)) for _, leaf in shown)
        most = max(1, min(MOST_STEPS, MOST_BYTES // size))
        episode = play_episode(policy, self.env, critic, seed=self.seed, about=about, most=most, enough=enough)
        if about.label == FINAL_LABEL:
            return episode
        # The critic is not the one that this policy had: it is asked so that one program plays all of them.
        kept = {name: array for name, array in episode.arrays.items() if name not in ("value", "final_value")}
        return replace(episode, arrays=kept)

    def _policies(self, run: Path, final: Policy, at: dict[str, dict[str, int]]) -> Iterator[tuple[Policy, About]]:
        """Yield the policies whose episode is not there yet: the final one, the best, and those on the way."""
        header = About(self.env.id, algorithm=type(self.algorithm).__name__.lower())
        yield final, _labelled(header, FINAL_LABEL, at)
        for name in [*BEST.values(), *(f"pi_ckpt{i}" for i in range(self.num_checkpoints, 0, -1))]:
            path, episode = run / POLICIES / f"{name}.safetensors", run / EPISODES / f"{name}.safetensors"
            if not path.is_file() or (episode.is_file() and episode.stat().st_mtime_ns > path.stat().st_mtime_ns):
                continue
            yield load_policy(path, self.algorithm), _labelled(header, name, at)


def _labelled(header: About, label: str, at: dict[str, dict[str, int]]) -> About:
    counts = at.get(label, {})
    return replace(header, label=label, steps=counts.get("steps"), iteration=counts.get("iteration"))
