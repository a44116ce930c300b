"""Figures of recorded episodes: what the agent did, checkpoint beside checkpoint, and whether its critic was right."""

import numpy as np

from ludus.report.figures.drawing import Figure, Panel, Trace, band, colour, line, packed, points
from ludus.runs.episode_file import BRANCH_RETURN, BRANCH_STEP, SIGNAL, Episode, read_episodes
from ludus.runs.summary import Story

MOST_EPISODES = 6
"""Episodes drawn over each other; of more, evenly spaced ones with the first and the last among them."""
MOST_SIGNALS = 40
MOST_DOTS = 600
"""Dots of one episode in the picture of calibration."""
STEP = "step of the episode"
SURE = 1.96
"""Standard errors to each side of a mean that make an interval of 95%."""


def chosen(episodes: dict[str, Episode]) -> dict[str, Episode]:
    """Return the episodes to draw, earlier policies first."""
    names = list(episodes)
    if len(names) <= MOST_EPISODES:
        return episodes
    kept = np.unique(np.linspace(0, len(names) - 1, MOST_EPISODES).round().astype(int))
    return {names[i]: episodes[names[i]] for i in kept}


def draw(story: Story) -> list[Figure]:
    """Draw the recorded episodes of a run; nothing if it has none."""
    episodes = read_episodes(story.run.path)
    shown = chosen(episodes)
    if not shown:
        return []
    left = len(episodes) - len(shown)
    more = f" {left} more episodes are not drawn." if left else ""
    drawn = _calibration(shown, more), _branches(shown), _signals(shown, more)
    return [made for made in drawn if made is not None]


def _name(label: str, episode: Episode) -> str:
    steps = episode.about.steps
    return label if steps is None or label == str(steps) else f"{label} ({steps:,} steps)"


def _calibration(episodes: dict[str, Episode], more: str) -> Figure | None:
    """Draw predicted value against realised return, and both over the last episode."""
    dots, lowest, highest = [], [], []
    judged = {
        label: (episode, realised)
        for label, episode in episodes.items()
        if (realised := episode.realised()) is not None and episode.get("value") is not None
    }
    if not judged:
        return None
    for i, (label, (episode, realised)) in enumerate(judged.items()):
        value = np.asarray(episode.arrays["value"], np.float64)
        every = slice(None, None, -(-len(value) // MOST_DOTS))
        dots.append(points(realised[every], value[every], _name(label, episode), colour(i), marker={"size": 4}))
        lowest.append(min(realised.min(), value.min()))
        highest.append(max(realised.max(), value.max()))
    ends = np.array([min(lowest), max(highest)])
    right: Trace = line(ends, ends, "as it came", "#8a8f98", width=1, dash="dash", mode="lines")
    panels = [Panel("calibration", "Value against return", [right, *dots], x="realised return", y="predicted value")]
    label, (episode, realised) = list(judged.items())[-1]
    steps = np.arange(float(len(episode)))
    traces = [
        line(steps, np.asarray(episode.arrays["value"], np.float64), "predicted value", colour(0)),
        line(steps, realised, "realised return", colour(1)),
    ]
    panels.append(Panel("foresight", f"What {label} foresaw", traces, x=STEP, y="discounted return"))
    about = (
        "What the critic said of each step of a recorded episode, against the discounted return that came of it: dots "
        "on the dashed line were foreseen rightly, those above it too hopefully. Where an episode was cut, the "
        f"critic's own value stands for the rest.{more}"
    )
    return Figure("calibration", "Value calibration", about, panels)


def _branches(episodes: dict[str, Episode]) -> Figure | None:
    """Draw values against the mean return of branches from the same states, and how far those returns spread."""
    judged = {label: episode for label, episode in episodes.items() if episode.get(BRANCH_STEP) is not None}
    judged = {label: episode for label, episode in judged.items() if episode.get("value") is not None}
    if not judged:
        return None
    dots, ends = [], []
    for i, (label, episode) in enumerate(judged.items()):
        returns = np.asarray(episode.arrays[BRANCH_RETURN], np.float64)
        mean, value = returns.mean(axis=1), _valued(episode)
        error = SURE * returns.std(axis=1, ddof=min(1, returns.shape[1] - 1)) / np.sqrt(returns.shape[1])
        bars = {"type": "data", "array": packed(error), "thickness": 1}
        dots.append(points(mean, value, _name(label, episode), colour(i), marker={"size": 6}, error_x=bars))
        ends += [mean.min(), mean.max(), value.min(), value.max()]
    span = np.array([min(ends), max(ends)])
    right: Trace = line(span, span, "as it is", "#8a8f98", width=1, dash="dash", mode="lines")
    panels = [
        Panel("branches", "Value against branches", [right, *dots], x="mean return of branches", y="predicted value")
    ]
    label, episode = list(judged.items())[-1]
    returns, steps = np.asarray(episode.arrays[BRANCH_RETURN], np.float64), episode.arrays[BRANCH_STEP].astype(float)
    low, high = np.quantile(returns, (0.05, 0.95), axis=1)
    spread = [
        *band(steps, low, high, "5% to 95% of the branches", colour(1), "spread"),
        line(steps, returns.mean(axis=1), "mean of the branches", colour(1)),
        line(steps, _valued(episode), "predicted value", colour(0)),
    ]
    panels.append(Panel("branch_spread", f"Returns that may come of {label}", spread, x=STEP, y="discounted return"))
    count = returns.shape[1]
    about = (
        "What the critic said of states of a recorded episode, against the mean discounted return of rollouts that the "
        f"policy played on from each of them, with actions drawn by chance (of {label}: {count} from each). Lines "
        "through the dots are 95% intervals of the mean; the band holds nine in ten returns."
    )
    return Figure("branches", "Values against rollouts", about, panels)


def _valued(episode: Episode) -> np.ndarray:
    """Return what the critic said of the states that branches began in."""
    return np.asarray(episode.arrays["value"], np.float64)[episode.arrays[BRANCH_STEP]]


def _signals(episodes: dict[str, Episode], more: str) -> Figure | None:
    """Draw every signal over the step of the episode, one curve for each checkpoint."""
    units: dict[str, str] = {}
    for episode in episodes.values():
        units |= episode.about.units
    panels = [_panel(episodes, "return", "Return so far", "return")]
    panels += [_panel(episodes, SIGNAL + name, name, units[name]) for name in list(units)[:MOST_SIGNALS]]
    cut = f" {len(units) - MOST_SIGNALS} more signals are not drawn." if len(units) > MOST_SIGNALS else ""
    about = (
        "A recorded episode of each checkpoint, signal by signal in physical units: how behaviour changed in training."
    )
    return Figure("signals", "Behaviour", f"{about}{more}{cut}", panels)


def _panel(episodes: dict[str, Episode], array: str, title: str, unit: str) -> Panel:
    """Draw an array of every episode that has it."""
    traces = []
    for i, (label, episode) in enumerate(episodes.items()):
        values = episode.get(array)
        if values is not None:
            steps, meta = np.arange(float(len(values))), {"episode": label, "array": array}
            drawn = values.astype(np.float64)
            traces.append(line(steps, drawn, _name(label, episode), colour(i), width=1.5, mode="lines", meta=meta))
    return Panel(array, title, traces, x=STEP, y=unit)
