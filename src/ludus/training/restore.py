"""From a checkpoint to the state of training: what is checked before it is believed, and how a run goes on from it.

How exactly it goes on is a level, which is printed and written to run.json.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from ludus.algorithms.policy_file import scaling_in
from ludus.algorithms.registry import build, code_in, describe
from ludus.networks.action_scaling import settled
from ludus.runs import set_aside
from ludus.runs.checkpoint.format import Broken, DamagedError, Shape
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import JOURNAL, RunFolder
from ludus.runs.journal_repair import Remains, is_whole, rebuild, remains
from ludus.runs.strict_json import strict
from ludus.runtime import autotuning
from ludus.runtime.compilation import Options
from ludus.training.checkpoint_choice import chosen, exact_before, opened, way_out
from ludus.training.checkpoint_writer import FIRST
from ludus.training.iteration import TrainState
from ludus.training.mending import Mended, mended
from ludus.training.resume_point import Remembering, RestoreEnv
from ludus.training.run_config import DEVICES, MEANING
from ludus.training.state_arrays import ENV, Written, check_env_arrays, check_finite, outline, put_back, shapes
from ludus.types import LudusError, Spec, Tree

Level = Literal["exact", "rounding", "devices", "episode", "mended"]
MEANS: dict[Level, str] = {
    "exact": "every number will be as if nothing had happened",
    "rounding": "this process may have chosen other GPU kernels than the one before, so last bits may differ "
    "(ludus resume lets it read the run's choices)",
    "devices": "another number of devices adds up in another order, so last bits may differ",
    "episode": "the environments cannot be brought back to where they were, so running episodes start anew",
    "mended": "a part of the state is lost, so numbers will differ from those of a run that had it",
}
LATER = ("carry/env/return_rest", "cohorts/")
"""Arrays that the earliest checkpoints do not hold: they begin with nothing in them."""


class CheckpointSource:
    """The checkpoint that a run goes on from."""

    def __init__(self, run: Path, start: int | str, fallback: bool, say: Callable[[str], None]):
        """Find the checkpoint and read what it says it holds; with `fallback`, make do with what of it is whole."""
        self.run, self.fallback, self.say = run, fallback, say
        self.step, self.checkpoint = chosen(run, start, fallback, say)
        self.record = self.checkpoint.record
        self.level: Level = "exact"
        self.broken: list[Broken] = []
        """Pieces of long arrays that were found to be damaged when they were read."""
        self.journal: Remains | None = None
        """What is left of the journal, if rows of it are lost."""
        self.lost: list[str] = []
        """What the run goes on without, in words."""

    def check(self, run_id: str, meaning: dict[str, Any]) -> None:
        """Refuse a checkpoint of another run, or of one with other settings."""
        if self.record["run"] != run_id:
            raise LudusError(f"{self.checkpoint.path}: belongs to another run ({self.record['run']})")
        self.check_meaning(meaning)

    def check_meaning(self, meaning: dict[str, Any]) -> None:
        """Refuse a checkpoint that was written with other settings than these (`run_config.meaning_of`)."""
        try:
            # Checkpoints from before there were any.
            saved: dict[str, Any] = {"env_wrappers": [], "curriculum": {}, **self.record["meaning"]}
            saved["algorithm"] = _completed(saved["algorithm"], meaning["algorithm"])
            for name in MEANING:
                _compare(name, saved[name], meaning[name])
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LudusError(f"{self.checkpoint.path}: its record is damaged ({error})") from error

    def spec(self, spec: Spec) -> Spec:
        """Return a spec with the scaling that the checkpoint was written with."""
        try:
            return settled(replace(spec, scaling=scaling_in(self.record)))
        except ValueError as error:
            raise LudusError(f"{self.checkpoint.path}: its record is damaged ({error})") from error

    def compiler_options(self) -> Options | None:
        """Return the compiler's options that the run was begun with, if they are for this kind of device."""
        if self.record["made_with"]["platform"] != jax.default_backend():
            return None
        return tuple((name, value) for name, value in self.record["compiler_options"])

    def take_up(self, *parts: Remembering) -> None:
        """Bring everything that counts or judges to where the record says the run was."""
        try:
            for part in parts:
                part.restore(self.record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LudusError(f"{self.checkpoint.path}: its record is damaged ({error})") from error

    def load(self, blank: TrainState, num_envs: int, restore_env: RestoreEnv) -> tuple[TrainState, Written]:
        """Return the state, with the environments where they were; and the counts of arrays to be written anew."""
        expected, tree = shapes(blank), outline(blank)
        del blank  # its memory is free for what is read now
        whole = self.whole(tree, expected, num_envs)
        state = put_back(tree, whole.arrays)
        saved = {name.removeprefix(ENV): array for name, array in whole.arrays.items() if name.startswith(ENV)}
        if not restore_env(saved, state.carry):
            self.level = "episode"
        if not whole.is_exact:
            self.level = "mended"
        return state, whole.written

    def whole(self, tree: Tree, expected: dict[str, Shape], num_envs: int) -> Mended:
        """Return the arrays of a state like `tree`, without what is damaged if that is what the user wants."""
        try:
            arrays = self.arrays(expected, num_envs)
            left = mended(tree, arrays, self.broken)
        except DamagedError as error:
            raise error if self.fallback else LudusError(f"{error}; {way_out(self.run, self.step)}") from error
        if self.broken:
            more = f" (and {len(self.broken) - 1} more are damaged)" if len(self.broken) > 1 else ""
            told = f"{self.broken[0]}{more}; this costs {' and '.join(left.lost)}"
            if not self.fallback:
                raise LudusError(f"{told}; {self._way_on(left)}")
            self.say(told)
            self.lost += left.lost
        return left

    def _way_on(self, left: Mended) -> str:
        """Return what can be done though pieces of long arrays are damaged."""
        way = "ludus resume --fallback goes on without them"
        if left.is_exact and not any(piece.array.startswith(ENV) for piece in self.broken):
            return way
        before = exact_before(self.run, self.step)
        return f"{way}, not exactly" + (f"; --from {before} goes on exactly, from there" if before is not None else "")

    def check_journal(self) -> None:
        """Look whether the journal holds the rows that it held; LudusError if not, unless it is to go on without."""
        path, rows = self.run / JOURNAL, self.record["journal_rows"]
        try:
            if is_whole(self.run, rows, self.record["journal_bytes"]):
                return
            self.journal = remains(self.run, rows)
        except OSError as error:
            raise LudusError(f"{path}: cannot be read ({error.strerror or error})") from error
        told = f"{path}: is shorter or other than it was when the checkpoint was written: {self.journal}"
        if not self.fallback:
            raise LudusError(f"{told}; ludus resume --fallback goes on with the rows that are left")
        self.say(told)
        self.lost.append(f"journal: {self.journal}")

    def arrays(self, expected: dict[str, Shape], num_envs: int) -> dict[str, np.ndarray]:
        """Return the arrays of the state, which are expected, and those of the environments, if all make sense.

        Pieces of long arrays that are damaged are noted in `broken`, and hold zeros.
        """
        path, env = self.checkpoint.path, self.checkpoint.stated(ENV)
        check_env_arrays(path, env, self.record["steps"], num_envs)
        stated = self.checkpoint.stated()
        later = {name: x for name, x in expected.items() if name.startswith(LATER) and name not in stated}
        self.broken = []
        known = {name: x for name, x in expected.items() if name not in later} | env
        arrays = self.checkpoint.read(known, broken=self.broken)
        arrays |= {name: np.zeros([n or 0 for n in shape.shape], shape.dtype) for name, shape in later.items()}
        check_finite(path, arrays)
        if arrays["iteration"] != self.record["iteration"]:
            raise DamagedError(f"{path}: its state is of another iteration than its record")
        lengths, most = arrays.get(f"{ENV}lengths", np.zeros(0)), max(self.record["steps"], 1024 * num_envs)
        if not all(-1 <= n <= most for n in lengths.ravel().tolist()):
            raise DamagedError(f"{path}: {ENV}lengths holds episodes that are longer than the run")
        return arrays

    def go_on(self, folder: RunFolder, checkpoints: Checkpoints, made_with: dict[str, str]) -> None:
        """Take back what the run did after the checkpoint, and say from where it goes on."""
        record = self.record
        checkpoints.build_on(self.checkpoint)
        try:
            dropped = checkpoints.drop_after(self.step)
            if self.journal is None:
                folder.journal.cut(record["journal_rows"], record["journal_bytes"])
            else:
                self._rebuild_journal(folder, checkpoints, self.journal)
        except OSError as error:
            raise LudusError(f"{self.run}: cannot be written ({error.strerror})") from error
        on_gpu = jax.default_backend() == "gpu"
        if self.level == "exact" and on_gpu and not autotuning.is_known(folder.identity.get("autotuning")):
            self.level = "rounding"
        if self.level in ("exact", "rounding") and made_with.get(DEVICES) != record["made_with"].get(DEVICES):
            self.level = "devices"
        entry = {"steps": self.step, "level": self.level, **({"lost": self.lost} if self.lost else {})}
        first = folder.identity.get(FIRST) or self.step
        folder.write_identity(**{FIRST: first}, resumed=[*folder.identity.get("resumed", []), entry])
        if made_with != record["made_with"]:
            self.say(f"made with {record['made_with']}, resumed with {made_with}: last bits may differ")
        taken_back = f"; {len(dropped)} later checkpoints are taken back" if dropped else ""
        self.say(f"resumed at {self.step:,} steps · {self.level}: {MEANS[self.level]}{taken_back}")

    def _rebuild_journal(self, folder: RunFolder, checkpoints: Checkpoints, left: Remains) -> None:
        """Let the journal hold the rows that are left, and every checkpoint know how many were before it."""
        place = set_aside.new_place(self.run)
        set_aside.keep_journal(self.run, place)
        ends = rebuild(folder, left)
        for step in checkpoints.steps():
            with contextlib.suppress(DamagedError):
                rows = left.before(opened(checkpoints, step).record["journal_rows"])
                checkpoints.amend(step, {"journal_rows": rows, "journal_bytes": ends[rows]})
        self.say(f"{folder.path / JOURNAL}: holds {left.num_left:,} rows; as it was, it is kept in {place}")


def _completed(saved: object, now: dict[str, Any]) -> object:
    """Return a saved description with what versions since then have added, as it is read today.

    Only where it names the parts that are there anyway: nothing is imported for it.
    """
    if not isinstance(saved, dict) or code_in(saved) != code_in(now):
        return saved
    with contextlib.suppress(LudusError):  # what only its owner's code can make is compared as it is
        return strict(describe(build(saved)), not_finite=float)
    return saved


def _compare(key: str, saved: object, now: object) -> None:
    if isinstance(saved, dict) and isinstance(now, dict):
        for name in sorted(saved.keys() | now.keys()):
            _compare(f"{key}.{name}", saved.get(name), now.get(name))
    elif saved != now and str(saved) != str(now):  # an infinity is saved as its text
        saved, now = str(saved)[:200], str(now)[:200]
        raise LudusError(f"{key}={now}: the checkpoint was written with {saved}, and would mean something else now")
