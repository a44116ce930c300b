"""Asking a person while a run trains: questions are written into the run folder, and answers are read from it.

`runs/questions.py` says where each of them stands.
Answers come when they come, so what a run learns depends on that; what was answered by a checkpoint is part of it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.labelled import Labelled
from ludus.algorithms.learned_reward import LearnedReward
from ludus.algorithms.preference_reward import PreferenceReward
from ludus.algorithms.segments import Segments
from ludus.envs.base import AnyEnv
from ludus.runs.questions import ANSWERED, SEGMENTS
from ludus.runtime import files
from ludus.runtime.demonstration_file import write_demonstrations
from ludus.runtime.demonstrations import Demonstrations
from ludus.runtime.preference_file import FILE_BYTES, Preferences, read_preferences
from ludus.spaces import flatten, unflatten
from ludus.training.iteration import TrainState
from ludus.types import LudusError


def labelling_of(
    algorithm: Algorithm, env: AnyEnv, run: Path | None, say: Callable[[str], None]
) -> "FileLabelling | None":
    """Return what asks a person; None where nobody is asked."""
    source = algorithm.reward if isinstance(algorithm, LearnedReward) else None
    if not isinstance(source, PreferenceReward) or source.labeller != "file" or source.model is not None:
        return None
    if run is None:
        raise LudusError("reward.labeller=file: asks by files in the run folder; give run_dir")
    return FileLabelling(env, run, say)


class FileLabelling:
    """Exchanges questions and answers with a run folder, between chunks of iterations."""

    def __init__(self, env: AnyEnv, run: Path, say: Callable[[str], None]):
        """Begin with nothing asked."""
        self.env, self.run, self.say = env, run, say
        self._written: int | None = None
        self._size, self._has_told = -1, False

    def exchanged(self, state: TrainState) -> TrainState:
        """Write what is asked for the first time, and return the state with the answers that there are."""
        data: Labelled = state.learner.data
        asked = int(data.asked)
        if self._written is None:
            self._take_up(asked)
        if asked > (self._written or 0):
            self._write(data, asked)
        size = _size_of(self.run / ANSWERED)
        if size == self._size:
            return state
        self._size = size
        answers = self._answers(asked)
        return state if answers is None else _answered(state, data, answers)

    def _take_up(self, asked: int) -> None:
        """Take back what was asked, and answered, after the checkpoint that a run goes on from."""
        files.make_folder(self.run / SEGMENTS.parent)
        files.make_folder(self.run / SEGMENTS)
        for path in (self.run / SEGMENTS).glob("*.safetensors"):
            if int(path.stem) >= asked:
                files.remove(path)
        written = sorted(int(path.stem) for path in (self.run / SEGMENTS).glob("*.safetensors"))
        self._written = asked if written else 0
        if _size_of(self.run / ANSWERED):
            answers = self._answers(None)
            lines = files.read(self.run / ANSWERED, FILE_BYTES).splitlines(keepends=True)
            if answers is not None and len(lines) == len(answers.label):
                kept = [line for line, first in zip(lines, answers.first.tolist(), strict=True) if first // 2 < asked]
                files.write_whole(self.run / ANSWERED, b"".join(kept))

    def _write(self, data: Labelled, asked: int) -> None:
        first = self._written or 0
        segments = jax.device_get(data.segments.rows(slice(first, asked)))
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), segments)
        path = self.run / SEGMENTS / f"{first:06}.safetensors"
        write_demonstrations(demonstrations_of(flat, self.env), path)
        self.say(f"{asked - first} questions about segments wait in {self.run / SEGMENTS.parent}: ludus reward ask")
        self._written = asked

    def _answers(self, asked: int | None) -> Preferences | None:
        """Return the answers, of which the last line may still be being written; None if there are none to use."""
        try:
            return read_preferences(self.run / ANSWERED, 2 * (10**6 if asked is None else asked))
        except LudusError as error:
            if not self._has_told and _size_of(self.run / ANSWERED):
                self.say(f"{error}; training goes on without these answers")
                self._has_told = True
            return None


def demonstrations_of(segments: Segments, env: AnyEnv) -> Demonstrations:
    """Return segments `[n, L]` as demonstrations of one episode each."""
    count, length = segments.reward.shape
    space = env.observation_space
    chains = flatten(space, segments.obs)
    is_last = np.arange(length) == length - 1
    terminated = (is_last & segments.terminated[:, None]).ravel()

    def rows(x: np.ndarray) -> np.ndarray:
        return x.reshape(count * length, *x.shape[2:])

    return Demonstrations(
        space,
        env.action_space,
        unflatten(space, [rows(x[:, :-1]) for x in chains]),
        jax.tree.map(rows, segments.action),
        rows(segments.reward),
        terminated,
        np.tile(is_last, count) & ~terminated,
        unflatten(space, [x[:, -1] for x in chains]),
        env=env.id,
    )


def _answered(state: TrainState, data: Labelled, answers: Preferences) -> TrainState:
    """Return the state with answers in it; those about other pairs than were asked about are left out."""
    is_pair = answers.first // 2 == answers.second // 2
    number = (answers.first // 2)[is_pair]
    label = np.where(answers.first % 2 == 0, answers.label, 1.0 - answers.label)[is_pair]
    labels, known = np.array(data.label), np.array(data.is_answered)
    labels[number], known[number] = label, True
    new: Any = data._replace(label=jax.device_put(labels), is_answered=jax.device_put(known))
    return replace(state, learner=replace(state.learner, data=new))


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
