"""What a run has learnt to do: one episode of each policy that it keeps, recorded when the run is over.

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
from typing import TYPE_CHECKING

import numpy as np

from ludus.compilation import ASIDE, compile_clock
from ludus.critic import Critic
from ludus.keeping import BEST, POLICIES
from ludus.playing import play_episode
from ludus.policy import Policy, load_policy
from ludus.report.episode import FOLDER, About, Episode, write_episode
from ludus.spaces import leaves

if TYPE_CHECKING:
    from ludus.trainer import Trainer

FINAL_LABEL = "final"
SECONDS, SHARE = 5.0, 0.02
"""For so long, or for this share of the run's time if that is longer, a run plays when it is over."""
MOST_COMPILE_SECONDS = 30.0
"""Where the first iteration took longer to compile nothing is recorded: one more program would take as long."""
MOST_STEPS, MOST_BYTES = 2_000, 1 << 23
"""Steps and bytes of observations that a recorded episode has at most: it is cut there."""


class Showing:
    """Records the episodes of one run."""

    def __init__(self, is_wanted: bool, say: Callable[[str], None]):
        """Nothing was played; what is compiled from now on is this run's."""
        self.is_wanted, self._say = is_wanted, say
        self._compiled_before = compile_clock().total
        self._preparation: threading.Thread | None = None

    def prepare(self, trainer: "Trainer") -> None:
        """Let what plays be compiled, once, if it is: the run has made its first iterations by now."""
        if not self.is_wanted or self._preparation is not None or not trainer.record.iterations:
            return
        if trainer.record.folder is None or not trainer.loop.runner.IS_PURE:
            return
        if compile_clock().total - self._compiled_before > MOST_COMPILE_SECONDS:
            self.is_wanted = False
            return
        policy, critic, env = trainer.policy, trainer.critic, trainer.env

        def play_a_step() -> None:
            with contextlib.suppress(Exception):  # it will be said when an episode is wanted
                play_episode(policy, env, critic, most=1)

        self._preparation = threading.Thread(target=play_a_step, name=ASIDE)
        self._preparation.start()

    def record(self, trainer: "Trainer", is_to_leave: Callable[[], bool]) -> None:
        """Play and write down an episode of each policy, the final one first; training is over, and saved."""
        folder = trainer.record.folder
        if not self.is_wanted or folder is None:
            return
        deadline = time.monotonic() + max(SECONDS, SHARE * trainer.record.elapsed)

        def enough() -> bool:
            return time.monotonic() > deadline or is_to_leave()

        if self._preparation is not None:
            self._preparation.join(deadline - time.monotonic())
        try:
            critic = trainer.critic
            for policy, about in _policies(trainer, folder.path):
                if enough():
                    return
                episode = _played(trainer, policy, critic, about, enough)
                write_episode(episode, folder.path / FOLDER / f"{about.label}.safetensors")
        except Exception as error:  # whatever an environment raises: the run itself is done, and good
            reason = (str(error) or type(error).__name__).splitlines()[0][:200]
            self._say(f"{trainer.env.id}: no episode of it could be recorded ({reason})")


def _played(
    trainer: "Trainer", policy: Policy, critic: Critic | None, about: About, enough: Callable[[], bool]
) -> Episode:
    """Return the first episode of the run's own evaluations, as one of its policies plays it."""
    shown = leaves(trainer.env.observation_space)
    size = sum(np.dtype(leaf.dtype).itemsize * max(1, math.prod(leaf.shape)) for _, leaf in shown)
    most = max(1, min(MOST_STEPS, MOST_BYTES // size))
    seed = trainer.settings.seed
    episode = play_episode(policy, trainer.env, critic, seed=seed, about=about, most=most, enough=enough)
    if about.label == FINAL_LABEL:
        return episode
    # The critic is not the one that this policy had: it is asked so that one program plays all of them.
    kept = {name: array for name, array in episode.arrays.items() if name not in ("value", "final_value")}
    return replace(episode, arrays=kept)


def _policies(trainer: "Trainer", run: Path) -> Iterator[tuple[Policy, About]]:
    """Yield the policies of a run whose episode is not there yet: the final one, the best, and those on the way."""
    header, counts = About(trainer.env.id, algorithm=type(trainer.algorithm).__name__.lower()), trainer.record.counts
    yield trainer.policy, replace(header, label=FINAL_LABEL, steps=counts["steps"], iteration=counts["iteration"])
    number = trainer.settings.num_checkpoints
    for name in [*BEST.values(), *(f"pi_ckpt{i}" for i in range(number, 0, -1))]:
        path, episode = run / POLICIES / f"{name}.safetensors", run / FOLDER / f"{name}.safetensors"
        if not path.is_file() or (episode.is_file() and episode.stat().st_mtime_ns > path.stat().st_mtime_ns):
            continue
        at = trainer.keeper.kept_at.get(name, {})
        about = replace(header, label=name, steps=at.get("steps"), iteration=at.get("iteration"))
        yield load_policy(path, trainer.algorithm), about
