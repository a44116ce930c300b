"""The figures of one run. Each takes its story and returns what can be drawn of it, or None if there is nothing."""

from collections.abc import Callable

from ludus.report.figures.drawing import Figure
from ludus.report.figures.histograms import actions, gradients
from ludus.report.figures.learning import NORMS, divergence, gradient_flow, losses, optimiser, policy
from ludus.report.figures.panels import figure, scalar
from ludus.report.figures.returns import lengths, returns, stability, success
from ludus.report.figures.rewards import rewards
from ludus.report.figures.time_spent import throughput
from ludus.runs.metrics import EVALUATION, OWN_FIELDS, PLACE
from ludus.runs.summary import Story


def everything_else(story: Story, drawn: set[str]) -> Figure | None:
    """Draw whatever else the journal has, so that nothing in it stays unseen."""
    known = {metric.name for metric in EVALUATION}
    evaluated = [name for name in story.evaluation.columns if name not in known and not name.startswith("eval_info/")]
    names = [
        name
        for name in dict.fromkeys([*story.train.columns, *evaluated])
        if name not in drawn | {*PLACE, *OWN_FIELDS} and not name.startswith("seconds/")
    ]
    names = [name for name in names if not name.startswith(tuple(f"{norm}/" for norm in NORMS))]
    panels = [scalar(story, name) for name in names if not name.startswith("episode_return_")]
    return figure("others", "Everything else", "Every other number of the journal.", panels)


FIGURES: tuple[Callable[[Story], Figure | None], ...] = (
    returns, lengths, success, rewards, stability, losses, divergence, policy, gradient_flow, optimiser, gradients,
    actions, throughput,
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
