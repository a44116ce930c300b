"""One sentence about a run: solved, improving, stuck or diverged, and why."""

from typing import Literal, NamedTuple

import numpy as np

from ludus.report.figures.series import block_means, trend
from ludus.runs.summary import Story

Word = Literal["solved", "improving", "stuck", "diverged", "too early to say"]
BLOCKS = 10
"""The last half of a run is cut into so many blocks; their means are nearly independent of each other."""
SIGNIFICANT = 2.306
"""The 97.5% quantile of Student's t with BLOCKS - 2 degrees of freedom."""


class Verdict(NamedTuple):
    """The word and the evidence for it."""

    word: Word
    evidence: str

    def __str__(self) -> str:
        return f"{self.word.capitalize()}: {self.evidence}"


def verdict(story: Story) -> Verdict:
    """Judge a run by its own record."""
    reason = str(story.run.identity.get("exit_reason", ""))
    if story.run.status == "failed" and "not finite" in reason:
        return Verdict("diverged", " ".join(reason.split()))
    score = story.score
    if score is None:
        return Verdict("too early to say", "no episode has been finished and no evaluation made")
    said = f"a mean return of {score.mean:,.2f} [{score.low:,.2f}, {score.high:,.2f}] over {score.episodes} {score.of}"
    if story.target is not None and score.mean >= story.target:
        sure = "" if score.low >= story.target else ", although the interval still reaches below it"
        return Verdict("solved", f"{said} is at or above the target of {story.target:,g}{sure}")
    return _collapse(story, said) or _direction(story, said)


def _collapse(story: Story, said: str) -> Verdict | None:
    """Tell whether more than half of what had been learnt is surely lost again."""
    made = story.evaluations
    if len(made["mean"]) < 3:
        return None
    first, best = float(made["mean"][0]), int(np.argmax(made["mean"]))
    lost, gained = float(made["mean"][best] - made["mean"][-1]), float(made["mean"][best]) - first
    if gained > 0 and lost > gained / 2 and made["high"][-1] < made["low"][best]:
        told = f"{made['mean'][best]:,.2f} at {made['steps'][best]:,.0f} steps"
        return Verdict("diverged", f"{said}, after {told}: more than half of what was gained is lost")
    return None


def _direction(story: Story, said: str) -> Verdict:
    """Tell whether the returns of the last half of training rise significantly."""
    known = story.episodes.known.returns
    missing = f", short of the target of {story.target:,g}" if story.target is not None else ""
    means = block_means(known[len(known) // 2 :], BLOCKS)
    line = trend(np.arange(float(len(means))), means)
    if line is None or len(means) < BLOCKS:
        return Verdict("too early to say", f"{said}{missing}; there are too few episodes to see a trend")
    change = f"over the last half of training the return moved from {means[0]:,.2f} to {means[-1]:,.2f}"
    if line.t > SIGNIFICANT:
        return Verdict("improving", f"{said}{missing}; {change} (t = {min(line.t, 999):.1f})")
    return Verdict("stuck", f"{said}{missing}; {change}, which is no significant rise (t = {line.t:.1f})")
