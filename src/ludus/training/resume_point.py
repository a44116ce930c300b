"""The point from which a run goes on, as a `Trainer` sees it: one of its checkpoints, or its beginning."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import RunFolder
from ludus.runtime.compilation import Options
from ludus.training.iteration import TrainState
from ludus.training.state_arrays import Written
from ludus.types import Spec, Tree

RestoreEnv = Callable[[dict[str, np.ndarray], Tree], bool]
"""Brings the environments to where they were, by what they said of themselves and by the carry; tells whether they
are there."""


class Remembering(Protocol):
    """A part of a run that counts or judges, and that a resumed run must have as it was."""

    def snapshot(self) -> dict[str, Any]:
        """Return what it must remember, as JSON knows it: its part of a checkpoint's record."""
        ...

    def restore(self, record: dict[str, Any], /) -> None:
        """Take it up again from the record of a checkpoint."""
        ...


class ResumePoint(Protocol):
    """The point from which a run goes on."""

    def spec(self, spec: Spec) -> Spec:
        """Return a spec with the scaling of numbers that the run was begun with."""
        ...

    def compiler_options(self) -> Options | None:
        """Return the compiler's options that the run was begun with; None: they follow from the settings."""
        ...

    def take_up(self, *parts: Remembering) -> None:
        """Bring everything that counts or judges to where the run was."""
        ...

    def load(self, blank: TrainState, num_envs: int, restore_env: RestoreEnv) -> tuple[TrainState, Written]:
        """Return the state that the run goes on with, which is like `blank`; and which long arrays lost rows."""
        ...

    def go_on(self, folder: RunFolder, checkpoints: Checkpoints, made_with: dict[str, str]) -> None:
        """Take back what the run did after this point, and say from where it goes on."""
        ...
