"""Every row of docs/en/doors.md names something that is there."""

import importlib
import pkgutil
import re

import pytest
from places import DOCS

from ludus.algorithms import ppo
from ludus.compat import scenario_train
from ludus.envs.scenarios.driving import metrics as driving_metrics
from ludus.runs import metrics
from ludus.training.config import help_text

PAGE = (DOCS / "doors.md").read_text()


def table(title: str) -> list[list[list[str]]]:
    """Return the quoted words of every cell of the table that begins with a title."""
    (rows,) = re.findall(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:-1]] for row in rows.splitlines()]


NAMES = """PPOTrainer PPOAgent CartPoleWrapper MLflowLogger PPONetwork ActorNetwork CriticNetwork update_step
evaluate_action get_entropy PPOClip OnPolicyTrainer Buffer TrajectoryBuffer RolloutBuffer train
TransformerPolicyNetwork TransformerValueNetwork TransformerRewardModel"""
SOURCES = """src/training src/agent src/environment scripts/training/train.py sac_trainer.py sac_factory.py
pipeline/training.py pipeline/inference.py networks.py buffers.py ppo_agent.py trainers.py utils.py"""


@pytest.mark.requirement("S0.1", "S1.2", "S3.1")
def test_every_name_can_be_imported():
    rows = table("theirs")
    assert {path.rpartition(".")[2] for row in rows for path in row[0]} == set(NAMES.split())
    for row in rows:
        for path in (path for cell in row for path in cell):
            assert callable(pkgutil.resolve_name(path)), path


@pytest.mark.requirement("S2.23", "S3.1")
def test_every_source_file_of_the_documents_has_a_home():
    rows = table("source there")
    assert [name for row in rows for name in row[0]] == SOURCES.split()
    for _, modules in rows:
        named = [name for name in modules if name.startswith("ludus.")]
        assert named, modules
        for name in named:
            importlib.import_module(name)


def test_every_key_is_one():
    known = {line.split()[0] for line in help_text().splitlines() if line.startswith("  ")}
    for _, keys in table("setting there"):
        for key in keys:
            assert key.partition("=")[0] in known or key.startswith("env_options."), key


@pytest.mark.requirement("S2.18")
def test_driving_figures_are_those_of_the_simulator():
    rows = table("driving figure there, `metrics/`")
    told = {there: here for names in rows for there, here in zip(names[0], names[1] or names[0], strict=True)}
    assert told == scenario_train.DRIVING
    assert set(told.values()) <= set(driving_figures())


def driving_figures() -> dict:
    """What the simulator says of an episode in which nothing has happened."""
    return driving_metrics.figures(driving_metrics.nothing(), 1.0)


def test_every_figure_is_journalled():
    known = metrics.names_of((*metrics.ITERATION, *metrics.EVALUATION)) | ppo.METRICS.keys()
    for _, names in table("figure there"):
        assert names and set(names) <= known, names
