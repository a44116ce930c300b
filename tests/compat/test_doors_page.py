"""Every row of docs/en/doors.md names something that is there."""

import importlib
import re
from pathlib import Path

from ludus.config import help_text
from ludus.learning import ppo
from ludus.tracking import records

PAGE = (Path(__file__).parents[2] / "docs" / "en" / "doors.md").read_text()


def table(title: str) -> list[list[list[str]]]:
    """Return the quoted words of every cell of the table that begins with a title."""
    (rows,) = re.findall(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:-1]] for row in rows.splitlines()]


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_name_can_be_imported():
    rows = table("theirs")
    doors = {"PPOTrainer", "PPOAgent", "CartPoleWrapper", "MLflowLogger", "PPOClip", "OnPolicyTrainer"}
    assert doors <= {row[0][0].rpartition(".")[2] for row in rows}
    for row in rows:
        for path in (path for cell in row for path in cell):
            assert callable(found(path)), path


def test_every_key_is_one():
    known = {line.split()[0] for line in help_text().splitlines() if line.startswith("  ")}
    for _, keys in table("setting there"):
        for key in keys:
            assert key.partition("=")[0] in known or key.startswith("env_options."), key


def test_every_figure_is_journalled():
    known = records.ITERATION_METRICS | records.EVALUATION_METRICS | ppo.METRICS
    for _, names in table("figure there"):
        assert names and set(names) <= known.keys(), names
