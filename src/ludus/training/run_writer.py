"""Writing a run into its folder: how it began, its checkpoints, what it has learnt, and how it ended."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ludus.envs.base import AnyEnv
from ludus.runs.folder import RunFolder
from ludus.runs.recorder import Recorder
from ludus.runs.storage.options import StorageOptions
from ludus.runs.storage.tracker import StorageTracker
from ludus.runs.trackers.base import TrackingOptions
from ludus.runs.trackers.registry import trackers
from ludus.runtime import autotuning
from ludus.runtime.compilation import Options
from ludus.training.changes import Changes
from ludus.training.checkpoint_writer import FIRST, Keeper
from ludus.training.distributed.mesh import Devices
from ludus.training.iteration import TrainState
from ludus.training.kept_episodes import FINAL_LABEL, Showing
from ludus.training.preflight import check_secrets, placed
from ludus.training.progress import Terms, record_of
from ludus.training.resume_point import ResumePoint
from ludus.training.run_config import identity_of, made_with
from ludus.training.schedule import Judge
from ludus.training.settings import Settings
from ludus.training.trained import Trained
from ludus.types import LudusError


class RunWriter:
    """Writes one run; before it is given the run's folder it writes nothing."""

    def __init__(
        self, record: Recorder, judge: Judge, keeper: Keeper, changes: Changes, showing: Showing, devices: Devices
    ):
        """Begin with nothing written."""
        self.record, self.judge, self.keeper = record, judge, keeper
        self.changes, self.showing = changes, showing
        self._storage: StorageOptions | None = None
        self.devices = devices

    @property
    def folder(self) -> RunFolder | None:
        """The run's folder; None if it has none."""
        return self.record.folder

    @property
    def run_dir(self) -> Path | None:
        """The run's folder."""
        return None if self.folder is None else self.folder.path

    def create(self, run_dir: str | Path, settings: Settings, env: AnyEnv) -> None:
        """Write everything to a new folder from now on, which is not made before the run begins."""
        check_secrets(env)
        path, storage = placed(Path(run_dir), settings.storage, self.record.console.say)
        self.open(RunFolder(path, settings.permissions == "group"), settings.tracking, storage)

    def open(self, folder: RunFolder, tracking: TrackingOptions, storage: StorageOptions) -> None:
        """Write everything to this folder from now on."""
        self.record.folder, self._storage = folder, storage
        say = self.record.console.say
        made = trackers(tracking, say)
        if storage.url is not None:  # the last: it copies what the others leave in the folder
            made.append(StorageTracker(storage, say))
        self.record.trackers = made

        def note_first(step: int) -> None:
            if folder.identity.get(FIRST) is None:
                folder.write_identity(**{FIRST: step})

        self.keeper.open(folder.path, note_first)

    def go_on(self, source: ResumePoint) -> None:
        """Take back what the run did after the point that it goes on from."""
        assert self.folder is not None
        assert self.keeper.checkpoints is not None
        source.go_on(self.folder, self.keeper.checkpoints, made_with(self.devices))

    def begin(self, config: dict[str, Any], seed: int, options: Options, configured_by: Sequence[str]) -> None:
        """Write down what is about to run."""
        first = None if self.folder is None else self.folder.identity.get(FIRST)
        if self._storage is not None:
            config = {**config, "storage": {**config["storage"], "url": self._storage.url}}
        self.record.begin(config, identity_of(seed, options, first, configured_by, self.devices))
        if not autotuning.is_measuring():
            self.note_kernels()  # whoever begins again after a kill reads the same

    def not_begun(self, error: BaseException, is_resumed: bool) -> None:
        """Say that the run could not begin; one that was to be resumed stays as it was."""
        self.record.console.stop()
        self.record.failed(error)
        with contextlib.suppress(LudusError):
            if is_resumed and self.folder is not None:
                self.folder.close()
            elif self.folder is not None and "status" in self.folder.identity:
                self.record.end("failed", f"{type(error).__name__}: {error}")

    def save(self, state: TrainState, env: dict[str, Any], terms: Terms) -> None:
        """Write a checkpoint of everything; its record refers to rows of the journal, which is brought to disk first.

        `env` is where the environments are, as they say themselves.
        """
        folder = self.folder
        assert folder is not None
        folder.check_place()
        trouble = folder.journal.trouble
        self.note_kernels()

        def journal_first() -> None:
            if trouble:
                raise LudusError(trouble)
            folder.journal.sync()

        remembered = record_of(folder, terms, self.record, self.judge, self.changes, self.keeper)
        self.keeper.save(state, env, remembered, journal_first)

    def note_kernels(self) -> None:
        """Write down with which GPU kernels this process computes, as far as it has compiled by now."""
        if self.folder is None or self.devices.first.platform != "gpu":
            return
        with contextlib.suppress(OSError):  # not written down, they are not known, and a resume says so
            if (noted := autotuning.keep(self.folder.path)) != self.folder.identity.get("autotuning"):
                self.folder.write_identity(autotuning=noted)

    def finish(
        self,
        status: str,
        reason: str,
        trained: Callable[[], Trained] | None,
        is_to_leave: Callable[[], bool] | None = None,
    ) -> None:
        """Save what was learnt, show it, and write down how the run ended.

        Args:
            status: how it ended, in one word.
            reason: what ended it.
            trained: returns what was learnt; None if there is nothing.
            is_to_leave: asked whether to stop showing; without it, nothing is shown.
        """
        run = self.run_dir
        try:
            try:
                if self.folder is not None and trained is not None:
                    self.folder.check_place()
                    trained().save(self.folder.path)
            finally:
                self.keeper.close()  # when a run is over, nothing may go on writing
        except LudusError as error:
            self.record.end("failed", str(error))
            raise
        if is_to_leave is not None and run is not None and trained is not None:
            at = {**self.keeper.kept_at, FINAL_LABEL: self.record.counts}
            self.showing.record(run, trained, at, self.record.elapsed, is_to_leave)
        facts = {"converged": self.judge.has_converged, "best_avg_reward": self.judge.convergence.best_avg_reward}
        if (best := self.keeper.best) is not None:
            facts["best"] = best
        self.record.end(status, reason, **facts)
