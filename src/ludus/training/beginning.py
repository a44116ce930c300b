"""A run that begins again: it had no checkpoint yet, or all it had are lost and its user wants it to.

Of a run whose checkpoints were removed nobody must say that it had none: its journal would be emptied. That there was a
first one is written into run.json; for runs of versions that did not do that, it follows from how far they came.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.runs import set_aside
from ludus.runs.checkpoint.format import CHECKPOINTS
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import RunFolder
from ludus.runs.journal import JOURNAL, JournalReader, TakenBackError
from ludus.training.checkpoint_writer import FIRST, POLICIES, CheckpointOptions
from ludus.training.iteration import TrainState
from ludus.training.resume_point import Remembering, RestoreEnv
from ludus.training.state_arrays import Written
from ludus.types import LudusError, Spec

CLOCKS = {
    "every_iterations": ("iteration", 1),
    "every_steps": ("steps", 1),
    "every_minutes": ("elapsed_seconds", 60),
}
"""By which figure of the journal each setting counts, and how much of it is one."""


class Beginning:
    """The start of a run that has all to do again."""

    def __init__(self, say: Callable[[str], None], lost: str | None = None):
        """`lost` says what is lost of a run that had been further; what is left of it is kept beside."""
        self.say, self.lost = say, lost

    def spec(self, spec: Spec) -> Spec:
        """Return the spec as it is: numbers are scaled as they are now."""
        return spec

    def compiler_options(self) -> None:
        """Return none: they follow from the settings."""

    def take_up(self, *parts: Remembering) -> None:
        """Take up nothing: no count was saved."""

    def load(self, blank: TrainState, num_envs: int, restore_env: RestoreEnv) -> tuple[TrainState, Written]:
        """Return the state that a run begins with."""
        return blank, {}

    def go_on(self, folder: RunFolder, checkpoints: Checkpoints, made_with: dict[str, str]) -> None:
        """Take back the rows that were journalled."""
        if self.lost is None:
            folder.journal.cut(0, 0)
            self.say("the run had not written a checkpoint yet: it begins again, exactly as it did")
            return
        place = set_aside.new_place(folder.path)
        try:
            set_aside.keep_journal(folder.path, place)
            set_aside.move(folder.path, place, CHECKPOINTS, str(POLICIES))
        except OSError as error:
            raise LudusError(f"{place}: cannot be written ({error.strerror or error})") from error
        folder.journal.cut(0, 0)
        entry = {"steps": 0, "level": "anew", "lost": [self.lost]}
        folder.write_identity(**{FIRST: None}, resumed=[*folder.identity.get("resumed", []), entry])
        self.say(f"{self.lost}: the run begins again at 0 steps; what there was is kept in {place}")


def has_saved(run: Path, identity: dict[str, Any], config: dict[str, Any]) -> bool:
    """Tell whether a run that has no checkpoint had written one."""
    if FIRST in identity:
        return identity[FIRST] is not None
    status, reason = identity.get("status"), str(identity.get("exit_reason"))
    saved_at_end = status == "finished" or (status == "interrupted" and not reason.startswith("KeyboardInterrupt"))
    if identity.get("resumed") or (saved_at_end and identity.get("iteration")):
        return True
    return _came_far(run, config.get("checkpoint"))


def _came_far(run: Path, options: object) -> bool:
    """Tell from the journal whether a second checkpoint was due: before that the first one is waited for."""
    rows: deque[dict[str, Any]] = deque(maxlen=3)
    reader = JournalReader(run / JOURNAL)
    try:
        while not reader.is_at_end:
            rows += [row for row in reader.read_rows() if row.get("kind") == "train"]
    except (LudusError, TakenBackError):
        return False
    if len(rows) < 3:
        return False
    settings: dict[str, Any] = {**vars(CheckpointOptions()), **(options if isinstance(options, dict) else {})}
    due = [(rows[0].get(figure, 0), settings[name], unit) for name, (figure, unit) in CLOCKS.items()]
    return any(isinstance(every, int | float) and 0 < 2 * every * unit <= reached for reached, every, unit in due)


def what_is_left(run: Path) -> str:
    """Return a few words about the policies of a run that has no checkpoint to go on from."""
    names = sorted(path.stem for path in (run / POLICIES).glob("*.safetensors"))
    return f"; {POLICIES}/ still holds {', '.join(names)}" if names else ""


def refusal(run: Path) -> LudusError:
    """Return what is said of a run whose checkpoints are gone."""
    return LudusError(
        f"{run}: has no checkpoint to go on from, but had written some: put {CHECKPOINTS}/ back, or begin the run "
        f"again with ludus resume --fallback, which keeps its journal and policies beside{what_is_left(run)}"
    )
