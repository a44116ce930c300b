"""Evaluations as people and programs read them: lines, a table with intervals, JSON, and rows of episodes."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ludus.algorithms.idle import idle_policy
from ludus.algorithms.policy import Policy
from ludus.envs.base import AnyEnv
from ludus.report.tables import aligned
from ludus.training.evaluation import Evaluation
from ludus.types import LudusError, Spec

LAST = "/last"


class DriverScore(NamedTuple):
    """An evaluation, and the kind of the scenario of each episode where there are any."""

    evaluation: Evaluation
    kinds: Sequence[str]


def idle(env: AnyEnv) -> Policy:
    """Return a policy for an environment in which a rule acts instead."""
    return idle_policy(Spec(env.observation_space, env.action_space, env.num_envs), env.id)


def summary(made: Mapping[str, DriverScore]) -> dict[str, Any]:
    """Return means and their intervals; by the name of who drove, where that was asked."""
    told = {}
    for driver, (evaluation, kinds) in made.items():
        about: dict[str, Any] = dict(evaluation.summary())
        if kinds:
            about["intervals"] = {name: list(bounds) for name, bounds in evaluation.intervals().items()}
        told[driver] = about
    return told[""] if list(told) == [""] else told


def text(made: Mapping[str, DriverScore]) -> str:
    """Return a line for each who drove, and where episodes are scenarios their figures with intervals side by side."""
    lines = [f"{driver}: {played.evaluation}" if driver else str(played.evaluation) for driver, played in made.items()]
    if not all(played.kinds for played in made.values()):
        return "\n".join(lines)
    names = [name for name in next(iter(made.values())).evaluation.info if name.endswith(LAST)]
    rows = [("mean [95% interval]", *(driver or "policy" for driver in made))] if names else []
    means = {driver: (played.evaluation.summary(), played.evaluation.intervals()) for driver, played in made.items()}
    for name in names:
        cells = [_cell(mean.get(name), bounds.get(name)) for mean, bounds in means.values()]
        rows.append((name.removeprefix("info/").removesuffix(LAST), *cells))
    return "\n".join([*lines, *([aligned(rows)] if rows else [])])


def _cell(mean: float | None, bounds: tuple[float, float] | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.3f}" + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")


def write_csv(path: Path, made: Mapping[str, DriverScore]) -> None:
    """Write a row for each episode; where episodes are scenarios, with the kind of each."""
    has_kinds, has_drivers = any(played.kinds for played in made.values()), list(made) != [""]
    first = next(iter(made.values())).evaluation
    extra = [name for name, is_there in (("driver", has_drivers), ("kind", has_kinds)) if is_there]
    try:
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["episode", *extra, "return", "length", *first.info])
            for driver, (evaluation, kinds) in made.items():
                columns = [x.tolist() for x in (evaluation.returns, evaluation.lengths, *evaluation.info.values())]
                for number, row in enumerate(zip(*columns, strict=True)):
                    words = [*([driver] if has_drivers else []), *([kinds[number]] if has_kinds else [])]
                    table.writerow([number, *words, *row])
    except OSError as error:
        raise LudusError(f"--csv={path}: cannot be written ({error.strerror})") from error
