"""Lists and comparisons as plain text for a terminal."""

from collections.abc import Collection, Sequence
from typing import Any

from ludus.report.comparison import LAST_SHARE, Comparison, Group
from ludus.runs.reader import Row
from ludus.runs.statistics import RESAMPLES, Estimate


def runs_table(rows: Sequence[Row]) -> str:
    """Return the list of runs."""
    lines = [("name", "environment", "algorithm", "steps", "best return", "status")]
    for row in rows:
        if row.problem:
            lines.append((row.name, "", "", "", "", f"damaged: {row.problem}"))
            continue
        mark = "*" if row.best_return_of == "training" else ""
        best = "" if row.best_return is None else f"{row.best_return:,.2f}{mark}"
        lines.append((row.name, row.environment or "", row.algorithm or "", f"{row.steps:,}", best, _status(row)))
    table = aligned(lines, right={3, 4})
    if any(row.best_return_of == "training" for row in rows):
        table += "\n* the best iteration of training; the run was not evaluated"
    return table


def _status(row: Row) -> str:
    rows = "row" if row.damaged_rows == 1 else "rows"
    return f"{row.status}, {row.damaged_rows:,} damaged {rows}" if row.damaged_rows else row.status


def comparison_table(comparison: Comparison) -> str:
    """Return who is compared, what was set differently and what came of it."""
    groups = comparison.groups
    parts = [aligned([_members(group) for group in groups])]
    parts += [f"note: {shown(note)}" for note in comparison.notes]
    letters = [group.letter for group in groups]
    if comparison.differences:
        lines = [(name, *map(setting_text, values)) for name, values in comparison.differences.items()]
        parts.append(aligned([("setting", *letters), *lines]))
    else:
        parts.append("the settings do not differ but for the seed")
    names = dict.fromkeys(name for group in groups for name in group.metrics)
    lines = [(name, *(estimate_text(group.metrics.get(name)) for group in groups)) for name in names]
    parts.append(aligned([("figure", *letters), *lines]))
    parts.append(
        f"Interquartile mean over seeds [95% bootstrap interval, {RESAMPLES:,} resamples]; one run has no interval.\n"
        f"Figures of training are means over the last {100 // LAST_SHARE}% of a run's iterations."
    )
    return "\n\n".join(parts)


def _members(group: Group) -> tuple[str, str]:
    seeds = ", ".join(str(run.seed) for run in group.runs)
    runs = ", ".join(str(run.path) for run in group.runs)
    return group.letter, f"{runs} (seed{'s' if len(group.runs) > 1 else ''} {seeds})"


def setting_text(value: Any) -> str:
    """Return a setting as text."""
    return value if isinstance(value, str) else repr(value)


def estimate_text(made: Estimate | None) -> str:
    """Return an estimate and its interval as text; a dash if there is none."""
    if made is None:
        return "-"
    if made.interval is None:
        return number(made.value)
    low, high = made.interval
    return f"{number(made.value)} [{number(low)}, {number(high)}]"


def number(value: float) -> str:
    """Format a number so that a reader sees four digits of it or more."""
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:.3e}"


def shown(text: str) -> str:
    """Return text that cannot move the cursor or colour the terminal, whatever a file said."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return lines of cells as columns."""
    clean = [[shown(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in clean
    )
