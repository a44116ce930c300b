"""A run's progress: what a checkpoint says besides its arrays, written down and checked."""

from typing import Any, NamedTuple

from ludus.runs.folder import RunFolder
from ludus.runtime.compilation import OPTION_NAMES, Options
from ludus.training.checkpoint_writer import SIGN
from ludus.training.resume_point import Remembering
from ludus.training.stopping import Convergence, ConvergenceOptions
from ludus.types import Scaling

RECORD = {
    "iteration": int, "steps": int, "episodes": int, "updates": int, "ordinal": int, "journal_rows": int,
    "journal_bytes": int, "elapsed_seconds": float, "run": str, "meaning": dict, "made_with": dict,
    "compiler_options": list, "marks": dict, "recent": list, "latest": dict, "written": dict,
}  # fmt: skip
"""What the record of every checkpoint holds; `ordinal` and `written` are the keeper's own."""


class Terms(NamedTuple):
    """The terms that the numbers of a run depend on: by these a checkpoint is read again."""

    meaning: dict[str, Any]
    """The settings without which the state would mean something else (`run_config.meaning_of`)."""
    scaling: Scaling
    compiler_options: Options
    made_with: dict[str, str]


def record_of(folder: RunFolder, terms: Terms, *parts: Remembering) -> dict[str, Any]:
    """Return what a run needs to go on from here, as JSON knows it; `parts` are those that count or judge."""
    record = {
        "journal_rows": folder.journal.rows,
        "journal_bytes": folder.journal.bytes,
        "run": folder.identity["id"],
        **terms._asdict(),
        "compiler_options": [list(option) for option in terms.compiler_options],
    }
    for part in parts:
        record |= part.snapshot()
    return record


def check(record: dict[str, Any], step: int) -> None:
    """Raise ValueError (or KeyError, TypeError...) if a record does not say what a run needs to go on."""
    for name, kind in RECORD.items():
        if type(record[name]) is not kind or (kind in (int, float) and not 0 <= record[name] < 2**62):
            raise ValueError(name)
    if record["steps"] != step or not isinstance(record["made_with"]["platform"], str):
        raise ValueError("steps or made_with")
    for name, value in record["compiler_options"]:
        if name not in OPTION_NAMES or type(value) not in (int, bool):
            raise ValueError("compiler_options")  # others can make the compiler write files
    pairs, recent = list(record["written"].values()), record["recent"]
    numbers = [n for part in (*pairs, *recent, record["marks"].values()) for n in part if n is not None]
    if any(len(pair) != 2 or None in pair for pair in pairs) or any(type(n) not in (int, float) for n in numbers):
        raise ValueError("recent, written or marks")
    if any(not 2 <= len(part) <= 4 or None in part[:3] for part in recent):
        raise ValueError("recent")
    if any(type(n) not in (int, float) for n in (*record["latest"].values(), *_changed(record).values())):
        raise ValueError("latest or hyperparameters")
    by, mode = record.get("best_by", (None, "max"))
    if not isinstance(by, str | None) or mode not in SIGN:
        raise ValueError("best_by")
    _check_convergence(record)


def _changed(record: dict[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that were changed while the run trained; earlier checkpoints do not say."""
    return record.get("hyperparameters", {})


def _check_convergence(record: dict[str, Any]) -> None:
    """Raise likewise if what the rule of convergence remembers is not what it wrote; old checkpoints have nothing."""
    if "convergence" in record:
        rule = Convergence(ConvergenceOptions())
        rule.restore(record["convergence"])
        if rule.snapshot() != record["convergence"]:
            raise ValueError("convergence")
