"""Figures of a reward that is learnt: learned against true return, and how far the model can be trusted."""

import numpy as np

from ludus.report.figures.drawing import Figure, Panel, line, points, thinning
from ludus.report.figures.panels import BLUE, GREEN, ORANGE, figure, scalar
from ludus.report.figures.series import thin
from ludus.runs.summary import Story


def rewards(story: Story) -> Figure | None:
    """Draw learned against true return, accuracy, trends and labels."""
    if "learned_return" not in story.train:
        return None
    share = {"yaxis": {"range": [-0.02, 1.02]}}
    panels = [
        scalar(story, "learned_return"),
        scalar(story, "true_return"),
        _against(story),
        scalar(story, "reward_accuracy", layout=share),
        scalar(story, "reward_explained_variance"),
        scalar(story, "reward_correlation"),
        _trends(story),
        scalar(story, "reward_alarm", layout=share),
        scalar(story, "reward_disagreement"),
        scalar(story, "reward_calibration_error"),
        scalar(story, "reward_loss"),
        scalar(story, "labels"),
    ]
    about = (
        "The reward is learnt. Where its returns rise with the true ones, it stands for what was meant; where they "
        "rise and the true ones fall, the policy has found a fault of the reward model, and the alarm is 1. Learned "
        "returns are in units of the model of their iteration."
    )
    return figure("rewards", "Learned reward", f"{about} {thinning(story.train.rows)}", panels)


def _against(story: Story) -> Panel | None:
    learned, true = story.train.column("learned_return"), story.train.column("true_return")
    known = np.isfinite(learned) & np.isfinite(true)
    if not known.any():
        return None
    rows = np.flatnonzero(known)[thin(true[known])]
    half = rows >= rows[len(rows) // 2]
    traces = [
        points(true[some], learned[some], name, hue)
        for some, name, hue in ((rows[~half], "first half", BLUE), (rows[half], "second half", ORANGE))
        if len(some)
    ]
    return Panel("against", "Learned against true return", traces, x="true return", y="learned return")


def _trends(story: Story) -> Panel | None:
    steps, train = story.train.column("steps"), story.train
    named = (("reward_trend", "learned reward", BLUE), ("true_reward_trend", "true reward", GREEN))
    traces = [
        line(steps, train.column(column), name, hue, meta={"column": column})
        for column, name, hue in named
        if np.isfinite(train.column(column)).any()
    ]
    title = "Trend over the segments of the latest iterations"
    return Panel("reward_trends", title, traces, y="standard errors") if traces else None
