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
    """An evaluation, the kind of the scenario of each episode where there are any, who drove, and in what variant."""

    evaluation: Evaluation
    kinds: Sequence[str]
    driver: str = ""
    variant: str = ""


def label(driver: str | None, variant: str | None, is_only: bool) -> str:
    """Return the name of an evaluation among others: who drove and, where there are several, in what variant."""
    if is_only:
        return driver or ""
    return f"{driver or 'policy'} {'nominal' if variant in (None, 'none') else variant}"


def worst(made: DriverScore, count: int) -> list[int]:
    """Return the numbers of the episodes with the least return, the worst first."""
    return [int(number) for number in made.evaluation.returns.argsort(kind="stable")[:count]]


def idle(env: AnyEnv) -> Policy:
    """Return a policy for an environment in which a rule acts instead."""
    return idle_policy(Spec(env.observation_space, env.action_space, env.num_envs), env.id)


def summary(made: Mapping[str, DriverScore]) -> dict[str, Any]:
    """Return means and their intervals; by the name of who drove, where that was asked."""
    told = {}
    for driver, played in made.items():
        about: dict[str, Any] = dict(played.evaluation.summary())
        if played.kinds:
            about["intervals"] = {name: list(bounds) for name, bounds in played.evaluation.intervals().items()}
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
    first = next(iter(made.values())).evaluation
    has_kinds = any(played.kinds for played in made.values())
    own = [name for name in ("driver", "variant") if any(getattr(played, name) for played in made.values())]
    extra = [*own, *(["kind"] if has_kinds else [])]
    try:
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["episode", *extra, "return", "length", *first.info])
            for played in made.values():
                evaluation, kinds = played.evaluation, played.kinds
                told = [getattr(played, name) for name in own]
                columns = [x.tolist() for x in (evaluation.returns, evaluation.lengths, *evaluation.info.values())]
                for number, row in enumerate(zip(*columns, strict=True)):
                    table.writerow([number, *told, *([kinds[number]] if has_kinds else []), *row])
    except OSError as error:
        raise LudusError(f"--csv={path}: cannot be written ({error.strerror})") from error
