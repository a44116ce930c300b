"""The figures of one run. Each takes its story and returns what can be drawn of it, or None if there is nothing."""

from collections.abc import Callable

from ludus.report.drawing import Figure
from ludus.report.histograms import actions, gradients
from ludus.report.learning import NORMS, divergence, gradient_flow, losses, optimiser, policy
from ludus.report.panels import figure, scalar
from ludus.report.returns import lengths, returns, stability, success
from ludus.report.story import Story
from ludus.report.time_spent import throughput

COUNTS = {"seq", "iteration", "steps", "episodes", "updates", "elapsed_seconds"}


def everything_else(story: Story, drawn: set[str]) -> Figure | None:
    """Draw whatever else the journal has, so that nothing in it stays unseen."""
    names = [name for name in story.train.columns if name not in drawn | COUNTS and not name.startswith("seconds/")]
    names = [name for name in names if not name.startswith(tuple(f"{norm}/" for norm in NORMS))]
    panels = [scalar(story, name) for name in names if not name.startswith("episode_return_")]
    return figure("others", "Everything else", "Every other number of the journal, under its own name.", panels)


FIGURES: tuple[Callable[[Story], Figure | None], ...] = (
    returns, lengths, success, stability, losses, divergence, policy, gradient_flow, optimiser, gradients, actions,
    throughput,
)  # fmt: skip
"""Every figure of a run's page, in order."""


def draw(story: Story) -> list[Figure]:
    """Draw all that a run's journal has to show."""
    made = [found for draw_one in FIGURES if (found := draw_one(story)) is not None]
    drawn = {
        trace["meta"]["column"] for each in made for panel in each.panels for trace in panel.traces if "meta" in trace
    }
    last = everything_else(story, drawn)
    return [*made, last] if last else made
