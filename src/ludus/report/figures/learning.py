"""Figures of how a run learns: losses, the policy, and the norms of gradients, updates and parameters."""

import numpy as np

from ludus.report.figures.drawing import Figure, Panel, colour, histogram, line, packed, raw, thinning
from ludus.report.figures.panels import BLUE, GREEN, ORANGE, RED, figure, scalar
from ludus.report.figures.series import thin, trend
from ludus.runs import metrics
from ludus.runs.summary import Story

KL_GUIDES = ((0.01, "0.01"), (0.02, "0.02"))
NORMS = {metric.name.partition("/")[0]: metric for metric in metrics.NORMS}
"""Norms that a journal may have for each layer, `<norm>/<layer>`."""
NETWORKS = ("actor", "critic", "critics", "shared", "alpha")
"""Names in the place of a layer's that stand for all layers of a network."""


def losses(story: Story) -> Figure | None:
    """Draw every loss with its trend."""
    panels = [_loss(story, name) for name in story.train.columns if name.endswith("_loss")]
    about = "Losses as they were minimised, one panel each, with a straight line through the last half: its trend."
    return figure("losses", "Losses", f"{about} {thinning(story.train.rows)}", panels)


def _loss(story: Story, name: str) -> Panel | None:
    panel = scalar(story, name)
    if panel is None:
        return None
    steps, values = story.train.column("steps"), story.train.column(name)
    half = len(steps) // 2
    fitted = trend(steps[half:], values[half:])
    if fitted is not None:
        ends = np.array([steps[half], steps[-1]])
        drawn = fitted.intercept + fitted.slope * ends
        per = fitted.slope * 1e6
        panel.traces.append(line(ends, drawn, f"trend: {per:+.3g} per million steps", RED, dash="dash", mode="lines"))
    return panel


def divergence(story: Story) -> Figure | None:
    """Draw how far the policy moves in an update."""
    values = story.train.column("approx_kl")
    known = values[np.isfinite(values)]
    panels = [scalar(story, "approx_kl", guides=KL_GUIDES)]
    if len(known):
        title = f"KL: mean {known.mean():.4f}, std {known.std():.4f}, max {known.max():.4f}"
        panels.append(Panel("kl_histogram", title, [histogram(known, "iterations", BLUE)], x="nats", y="iterations"))
    panels.append(scalar(story, "clip_fraction"))
    about = (
        "KL between the policy before and after an update, estimated as the mean of (r - 1) - log r. Between the "
        "guides at 0.01 and 0.02 an update is bold; far above, the learning rate is too high or the epochs are too "
        "many. The clip fraction is the share of samples whose ratio left the trust region."
    )
    return figure("divergence", "Size of the updates", f"{about} {thinning(story.train.rows)}", panels)


def policy(story: Story) -> Figure | None:
    """Draw entropy, explained variance, learning rate and what an algorithm has of that kind."""
    panels = [
        scalar(story, "entropy"),
        scalar(
            story,
            "explained_variance",
            guides=((1.0, "perfect"), (0.0, "no better than the mean")),
        ),
        scalar(story, "learning_rate"),
        scalar(story, "alpha"),
        scalar(story, "q_value"),
    ]
    about = (
        "Entropy falls as the policy makes up its mind; at nearly none it no longer explores. Explained variance is "
        "1 - Var(target - V) / Var(target): how much of the returns the critic foresees."
    )
    return figure("policy", "Policy and critic", f"{about} {thinning(story.train.rows)}", panels)


def gradient_flow(story: Story) -> Figure | None:
    """Draw the gradient that reaches each layer."""
    layers = _layers(story, "gradient_norm")
    single = {name: values for name, values in layers.items() if name not in NETWORKS}
    layers = single or layers
    if not layers:
        return None
    traces = []
    for name, values in layers.items():
        known = values[np.isfinite(values) & (values > 0)]
        kept = known[thin(known)]
        hue = BLUE if name.startswith("actor") else ORANGE if name.startswith("critic") else GREEN
        traces.append(
            {"type": "violin", "name": name, "y": packed(kept), "line": {"color": hue, "width": 1}, "points": False}
            | {"meanline": {"visible": True}, "spanmode": "hard", "showlegend": False}
        )
    flow = Panel("gradient_flow", "Gradient norms by layer", traces, x="", y="norm", is_log=True)
    flow.layout["xaxis"] = {"type": "category", "tickformat": None}
    series = _norm_panel(story, "gradient_norm")
    about = (
        "Norm of the gradient of each layer, from the observation to the output: actor blue, critic orange, on a "
        "logarithmic scale. A layer orders of magnitude below its neighbours hardly learns."
    )
    return figure("gradient_flow", "Gradient flow", about, [flow, series])


def _layers(story: Story, norm: str) -> dict[str, np.ndarray]:
    """Return the norms of layers and whole networks: network by network, from the observation to the output."""
    found = {
        name.removeprefix(f"{norm}/"): values
        for name, values in story.train.columns.items()
        if name.startswith(f"{norm}/") and (values > 0).any()
    }
    return dict(sorted(found.items(), key=lambda item: (item[0].partition("_")[0], "head" in item[0], item[0])))


def _norm_panel(story: Story, norm: str) -> Panel | None:
    steps, layers = story.train.column("steps"), _layers(story, norm)
    traces = [
        raw(steps, values, layer, colour(i), f"{norm}/{layer}", width=1.5, opacity=0.9)
        for i, (layer, values) in enumerate(layers.items())
    ]
    metric = NORMS[norm]
    return Panel(norm + "_layers", metric.title, traces, y=metric.unit, is_log=True) if traces else None


def optimiser(story: Story) -> Figure | None:
    """Draw what the optimiser does: norms of gradients, updates, parameters and moments."""
    panels = [scalar(story, "gradient_norm", is_log=True)]
    panels += [_norm_panel(story, norm) for norm in NORMS if norm != "gradient_norm"]
    about = (
        "Euclidean norms: of the gradient, of what Adam makes of it (the update), of the parameters and of Adam's "
        "running means of the gradient and of its square. An update a thousandth of the parameters' norm is usual."
    )
    return figure("optimiser", "Optimiser", f"{about} {thinning(story.train.rows)}", panels)
