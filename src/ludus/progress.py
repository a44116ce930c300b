"""How far a run came: what a checkpoint says besides its arrays, written down, checked, and taken up again."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ludus.compilation import OPTION_NAMES
from ludus.convergence import Convergence, ConvergenceOptions
from ludus.keeping import Marks
from ludus.run_config import made_with, meaning_of
from ludus.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from ludus.trainer import Trainer

RECORD = {
    "iteration": int, "steps": int, "episodes": int, "updates": int, "ordinal": int, "journal_rows": int,
    "journal_bytes": int, "elapsed_seconds": float, "run": str, "meaning": dict, "made_with": dict,
    "compiler_options": list, "marks": dict, "recent": list, "latest": dict, "written": dict,
}  # fmt: skip
"""What the record of every checkpoint holds; `ordinal` and `written` are the keeper's own."""


def record_of(trainer: "Trainer", folder: RunFolder) -> dict[str, Any]:
    """Return what a run needs to go on from here, as JSON knows it."""
    return {
        **trainer.record.snapshot(),
        "journal_rows": folder.rows,
        "journal_bytes": folder.bytes,
        "marks": asdict(trainer.keeper.marks),
        "convergence": trainer.judge.convergence.snapshot(),
        "score": trainer.judge.score,
        "best_by": _best_by(trainer),
        "run": folder.identity["id"],
        "meaning": meaning_of(trainer),
        "scaling": trainer.loop.spec.scaling,
        "compiler_options": [list(option) for option in trainer.loop.options],
        "made_with": made_with(trainer),
    }


def _best_by(trainer: "Trainer") -> list[str | None]:
    """Return by which figure the best is judged, and how."""
    options = trainer.settings.checkpoint
    return [options.best_by, options.best_mode]


def take_up(trainer: "Trainer", record: dict[str, Any]) -> None:
    """Bring everything that counts in a trainer to where a record says the run was."""
    trainer.record.restore(record)
    trainer.judge.restore(record.get("convergence"))
    keeper = trainer.keeper
    keeper.marks = Marks(**record["marks"])
    if record.get("best_by", _best_by(trainer)) != _best_by(trainer):  # what was best by another figure says nothing
        keeper.marks.best_score = keeper.marks.best_figure = None
    keeper.ordinal = record["ordinal"]
    keeper.written = {name: (count, cycle) for name, (count, cycle) in record["written"].items()}
    keeper.last = {
        "iteration": trainer.record.iterations,
        "steps": trainer.record.steps,
        "seconds": trainer.record.elapsed,
    }


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
    if any(type(n) not in (int, float) for n in record["latest"].values()):
        raise ValueError("latest")
    _check_convergence(record)


def _check_convergence(record: dict[str, Any]) -> None:
    """Raise likewise if what the rule of convergence remembers is not what it wrote; old checkpoints have nothing."""
    if "convergence" in record:
        rule = Convergence(ConvergenceOptions())
        rule.restore(record["convergence"])
        if rule.snapshot() != record["convergence"]:
            raise ValueError("convergence")
