"""Runs beside each other: what was set differently, and what came of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ludus.runs.folder import flat
from ludus.runs.reader import Run
from ludus.runs.statistics import Estimate, estimate
from ludus.runs.strict_json import strict
from ludus.runs.summary import Story, read_several
from ludus.types import LudusError

OWN = ("seed", "run_dir", "verbose", "log_frequency", "loguru")
"""Settings in which the runs of one group may differ: those that no agent can feel. `tracking` is another."""
LAST_SHARE = 10
"""Training figures are means over the last tenth of a run's rows."""
UNTOLD = ("seq", "iteration", "episodes", "updates")
"""Columns that count rather than measure."""
ABSENT = "(absent)"
FINAL = "final evaluation return"


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed, and their figures over seeds."""

    letter: str
    stories: list[Story]
    settings: dict[str, Any]
    """The configuration, flat: `algorithm.gamma` and so on."""
    metrics: dict[str, Estimate]
    scores: dict[str, list[float]]
    """The figures of each run, in the order of the runs that have them."""

    @property
    def runs(self) -> list[Run]:
        """The runs."""
        return [story.run for story in self.stories]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, the settings in which they differ and what a reader should know before comparing them."""

    groups: list[Group]
    differences: dict[str, list[Any]]
    notes: list[str]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        told = {
            "groups": [
                {
                    "group": group.letter,
                    "runs": [str(run.path) for run in group.runs],
                    "seeds": [run.seed for run in group.runs],
                    "metrics": {
                        name: {"iqm": made.value, "interval": made.interval, "runs": group.scores[name]}
                        for name, made in group.metrics.items()
                    },
                }
                for group in self.groups
            ],
            "differences": self.differences,
            "notes": self.notes,
        }
        return strict(told)


def compare(paths: Sequence[Path]) -> Comparison:
    """Compare two runs or more; those that differ in nothing but the seed are taken together."""
    if len(paths) < 2:
        raise LudusError(f"{', '.join(map(str, paths)) or 'no run'}: one run is not a comparison; give at least two")
    taken: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in taken:
            raise LudusError(
                f"{path}: is given twice (as {taken[path.resolve()]}); a run is not a second seed of itself"
            )
        taken[path.resolve()] = path
    return compared(*read_several(paths))


@np.errstate(all="ignore")  # a figure may be too large for a sum; what is not known is not told
def compared(stories: Sequence[Story], notes: Sequence[str] = ()) -> Comparison:
    """Compare runs that have been read, about which there may be notes; see `compare`."""
    alike: dict[str, list[Story]] = {}
    for story in stories:
        alike.setdefault(repr(sorted(settings(story.run).items())), []).append(story)
    groups = [_group(letter, members) for letter, members in zip(_letters(), alike.values(), strict=False)]
    return Comparison(groups, differences(groups), [*notes, *_notes(groups)])


def _letters() -> Iterator[str]:
    """Yield A, B, ... Z, AA, AB, ..."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    yield from alphabet
    for before in _letters():
        yield from (before + letter for letter in alphabet)


def settings(run: Run) -> dict[str, Any]:
    """Return the configuration of a run as one flat dictionary, without its seed and its folder."""
    every = flat(run.config)
    return {name: value for name, value in every if name not in OWN and not name.startswith("tracking.")}


def differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Return the settings in which groups differ, each with its value in every group."""
    names = dict.fromkeys(name for group in groups for name in group.settings)
    table = {name: [group.settings.get(name, ABSENT) for group in groups] for name in names}
    return {name: values for name, values in table.items() if any(repr(value) != repr(values[0]) for value in values)}


def _group(letter: str, stories: list[Story]) -> Group:
    figures = [run_figures(story) for story in stories]
    names = dict.fromkeys(name for each in figures for name in each)
    scores = {name: [each[name] for each in figures if name in each] for name in names}
    estimates = {name: estimate(scores[name]) for name in names}
    return Group(letter, stories, settings(stories[0].run), estimates, scores)


def run_figures(story: Story) -> dict[str, float]:
    """Return what a run came to, one number for each figure; a figure that it does not have is absent."""
    figures: dict[str, float] = {}
    evaluated = story.evaluations["mean"]
    if len(evaluated):
        figures |= {FINAL: float(evaluated[-1]), "best evaluation return": float(evaluated.max())}
    for name in ("steps", "elapsed_seconds", "steps_per_second"):
        if (latest := story.total(name)) is not None:
            figures[name] = latest
    if "steps" in figures and figures.get("elapsed_seconds"):
        figures["steps_per_second"] = figures["steps"] / figures["elapsed_seconds"]
    train = story.train
    first = train.rows - max(1, train.rows // LAST_SHARE)
    for name, column in train.columns.items():
        known = column[max(first, 0) :]
        known = known[np.isfinite(known)]
        if len(known) and name not in UNTOLD and name not in figures:
            figures[name] = float(known.mean())
    return figures


def _notes(groups: Sequence[Group]) -> list[str]:
    notes = []
    environments = {group.letter: group.runs[0].environment for group in groups}
    if len(set(environments.values())) > 1:
        named = ", ".join(f"{letter}: {environment}" for letter, environment in environments.items())
        notes.append(f"the environments differ ({named}): returns of different environments cannot be compared")
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if len(set(map(repr, seeds))) < len(seeds):
            notes.append(
                f"{group.letter}: a seed occurs twice among {seeds}; the interval is narrower than it should be"
            )
        notes += [f"{group.letter}: {story.run.path}: {story.damage}" for story in group.stories if story.damage]
        waiting = [str(run.path) for run in group.runs if run.status not in ("finished", "interrupted")]
        if waiting:
            notes.append(f"{group.letter}: not finished: {', '.join(waiting)}")
        empty = [str(run.path) for run in group.runs if not group.metrics]
        if empty:
            notes.append(f"{group.letter}: no metrics yet: {', '.join(empty)}")
    return notes
