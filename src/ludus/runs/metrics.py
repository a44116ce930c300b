"""The one table of figures: what every number of a journal is, its unit, its title, and what others call it.

Journal, console, TensorBoard, MLflow, the report and the page `docs/en/metrics.md` all read it. What the figures of an
algorithm mean stands in the algorithm's own file (`METRICS`); here are the titles and units of those that many have. A
figure that the table does not know, such as one of a user's own algorithm, is shown as well: under its own name.
"""

import functools
import re
from collections.abc import Iterable

from ludus.runs.metric import Metric

OWN_FIELDS = ("seq", "kind", "crc")
"""Fields of a row that are no figures."""
COUNTS = ("iteration", "steps", "episodes", "updates")
"""Running totals; every row has them, an evaluation's are those of the `train` row before it."""
PLACE = (*COUNTS, "elapsed_seconds")
"""Columns that an `evaluation` row repeats: the point of the run at which it was made."""

ITERATION = (
    Metric("iteration", "iterations (one collect and one update) so far", "Iterations", "iterations", "runtime"),
    Metric("steps", "environment steps so far", "Environment steps", "steps", aliases=("total_steps",)),
    Metric("episodes", "episodes finished so far", "Episodes", "episodes", "runtime"),
    Metric("updates", "gradient steps so far", "Gradient steps", "gradient steps", "runtime", ("num_updates",)),
    Metric(
        "episode_return_mean",
        "mean return of the episodes that ended in this iteration; absent if none did",
        "Return of training episodes",
        "return",
        "rollout",
        ("avg_reward", "episode_reward"),
    ),
    Metric("episode_return_min", "lowest of them", "Lowest return of training episodes", "return", "rollout"),
    Metric("episode_return_max", "highest of them", "Highest return of training episodes", "return", "rollout"),
    Metric(
        "episode_length_mean",
        "their mean length in steps",
        "Episode length",
        "steps of an episode",
        "rollout",
        ("avg_length", "episode_length"),
    ),
    Metric(
        "success_rate",
        "share of them that succeeded, by the one rule that the run has (setting `success`); absent if it has none",
        "Success rate",
        "share of episodes",
        "rollout",
    ),
    Metric(
        "counted_episodes",
        "episodes that count from this iteration on: all that began before them, or with them, have ended, so that "
        "short ones, which end first, are not overrated",
        "Episodes that count from here on",
        "episodes",
    ),
    Metric(
        "counted_return_mean", "their mean return; absent if there are none", "Return of counted episodes", "return"
    ),
    Metric("counted_length_mean", "their mean length in steps", "Length of counted episodes", "steps of an episode"),
    Metric(
        "recent_return_mean",
        "mean return of the latest `recent_episodes_window` episodes that count, and of others of their iterations; "
        "absent if none counts from this one on, or there are not so many",
        "Return of the latest counted episodes",
        "return",
    ),
    Metric(
        "episodes_running",
        "episodes still running that those to count next wait for",
        "Episodes that are waited for",
        "episodes",
    ),
    Metric("episodes_waiting", "episodes that ended and wait for them", "Episodes that wait to count", "episodes"),
    Metric("reward_mean", "mean reward of a step", "Reward of a step", "reward", "rollout"),
    Metric("elapsed_seconds", "wall-clock time since training began", "Wall-clock time", "seconds", "runtime"),
    Metric(
        "steps_per_second",
        "environment steps per second over the chunk that this iteration belongs to, without compilation",
        "Steps per second",
        "steps/s",
        "runtime",
    ),
)
"""Every figure of a `train` row besides the algorithm's own."""

EPISODES = (
    Metric(
        "episode_returns",
        "return of every single episode that ended in this iteration, in the order of their ends",
        unit="return",
    ),
    Metric("episode_lengths", "their lengths", unit="steps of an episode"),
)
"""Further columns of a `train` row with `record_episodes`: lists."""

WHOLE_EPISODES = (
    Metric(
        "episodes_cut",
        "episodes that the end of this rollout cut short: they are learnt from, but not counted",
        "Episodes cut short",
        "episodes",
    ),
)
"""Further columns of a `train` row where rollouts hold whole episodes."""

TIMES = (
    Metric(
        "seconds/environment",
        "time of this iteration that environments outside JAX took to step",
        "environment",
        "seconds",
        "runtime",
    ),
    Metric("seconds/act", "time it took to choose their actions", "acting", "seconds", "runtime"),
    Metric("seconds/branches", "time that Monte-Carlo rollouts from its states took", "branches", "seconds", "runtime"),
    Metric(
        "seconds/update",
        "the rest of the iteration: the update, and moving the rollout to the device",
        "update",
        "seconds",
        "runtime",
    ),
    Metric(
        "seconds/iteration",
        "time of this iteration where it is one compiled program",
        "collecting and updating",
        "seconds",
        "runtime",
    ),
    Metric("seconds/evaluation", "time that an evaluation took (in its own row)", "evaluation", "seconds", "runtime"),
    Metric(
        "seconds/compile",
        "time that JAX took to trace and compile since the row before, if it did; in none of the others",
        "compile",
        "seconds",
        "runtime",
    ),
)
"""Seconds by kind of work: three where environments are stepped from Python, the fourth where they are compiled."""

INFO = (
    Metric(
        "info/<name>/mean",
        "mean of a number in the environment's info over the steps of an episode that gave it, averaged over the "
        "episodes that ended in this iteration",
        group="metrics",
    ),
    Metric("info/<name>/last", "its value at the last step of an episode, averaged likewise", group="metrics"),
    Metric("eval_info/<name>/mean", "the mean likewise, over the episodes of an evaluation", group="evaluation"),
    Metric("eval_info/<name>/last", "the last value likewise, over the episodes of an evaluation", group="evaluation"),
)
"""Columns for every number that the environment puts into its info; absent if no episode gave it."""

SCENARIOS = (
    Metric(
        "curriculum/<name>",
        "what the curriculum made of this parameter of the environment, for episodes that began in this iteration",
        group="",
    ),
    Metric(
        "scenarios/failure",
        "mean over the scenarios of a stored set of how often episodes fail in them, by their latest episodes; 1 "
        "before the first (`scenario_sampling=difficulty`)",
        "Failure in the scenarios of training",
        "share of episodes",
        group="",
    ),
)
"""Columns where a curriculum leads the environment, or scenarios are drawn by difficulty."""

EVALUATION = (
    Metric(
        "eval_return_mean",
        "mean return of greedy episodes on separate, seeded environments",
        "Return of evaluations",
        "return",
        "evaluation",
        ("eval_avg_reward",),
        "mean_return",
    ),
    Metric(
        "eval_return_std",
        "their standard deviation",
        "Deviation of the return of evaluations",
        "return",
        "evaluation",
        ("eval_std_reward",),
        "std_return",
    ),
    Metric(
        "eval_return_min",
        "lowest of them",
        "Lowest return of evaluations",
        "return",
        "evaluation",
        ("eval_min_reward",),
        "min_return",
    ),
    Metric(
        "eval_return_max",
        "highest of them",
        "Highest return of evaluations",
        "return",
        "evaluation",
        ("eval_max_reward",),
        "max_return",
    ),
    Metric(
        "eval_length_mean",
        "their mean length in steps",
        "Episode length of evaluations",
        "steps of an episode",
        "evaluation",
        ("eval_avg_length",),
        "mean_length",
    ),
    Metric("eval_episodes", "how many there were", "Episodes of evaluations", "episodes", "evaluation", (), "episodes"),
    Metric(
        "eval_episodes_cut",
        "how many of them were cut at `eval_max_steps`; absent if none was",
        "Episodes of evaluations that were cut",
        "episodes",
        "evaluation",
        (),
        "episodes_cut",
    ),
)
"""Every figure of an `evaluation` row besides where in the run it was made."""

UPDATE = (
    Metric("policy_loss", title="Policy loss"),
    Metric("value_loss", title="Value loss"),
    Metric("total_loss", title="Total loss"),
    Metric("critic_loss", title="Critic loss"),
    Metric("alpha_loss", title="Alpha loss"),
    Metric("entropy", title="Entropy", unit="nats", aliases=("-entropy_loss",)),
    Metric("approx_kl", title="Approximate KL divergence", unit="nats", aliases=("kl_divergence",)),
    Metric("nll", title="Negative log-likelihood of demonstrated actions", unit="nats"),
    Metric("held_out_nll", title="Negative log-likelihood of held-out actions", unit="nats"),
    Metric("accuracy", title="Agreement with demonstrated actions", unit="share of steps"),
    Metric("held_out_accuracy", title="Agreement with held-out actions", unit="share of steps"),
    Metric("kl", title="KL divergence from the reference", unit="nats"),
    Metric("kl_coef", title="Weight of the KL penalty"),
    Metric("kl_penalty", title="KL penalty"),
    Metric("clip_fraction", title="Clip fraction", unit="share of samples", aliases=("clipfrac",)),
    Metric("gradient_norm", title="Gradient norm, before clipping", unit="norm", aliases=("grad_norm",)),
    Metric("explained_variance", title="Explained variance"),
    Metric("learning_rate", title="Learning rate"),
    Metric("alpha", title="Temperature"),
    Metric("q_value", title="Mean action value", unit="return"),
    Metric("replay_size", title="Replay size", unit="transitions"),
)
"""Figures of updates; the exact formula of each stands in the algorithm's `METRICS`."""

REWARD = (
    Metric("learned_return", title="Return by the learned reward", unit="learned return", group="reward"),
    Metric("true_return", title="Return by the true reward", unit="return", group="reward"),
    Metric("reward_loss", title="Loss of the reward model", group="reward"),
    Metric("reward_accuracy", title="Held-out accuracy of the reward model", unit="share", group="reward"),
    Metric("reward_calibration_error", title="Calibration error of the reward model", unit="share", group="reward"),
    Metric("reward_temperature", title="Temperature of preferences", group="reward"),
    Metric("reward_explained_variance", title="Explained variance of held-out returns", group="reward"),
    Metric("reward_disagreement", title="Disagreement of the reward models", group="reward"),
    Metric("reward_correlation", title="Correlation of learned and true reward", group="reward"),
    Metric("reward_trend", title="Trend of the learned reward", unit="standard errors", group="reward"),
    Metric("true_reward_trend", title="Trend of the true reward", unit="standard errors", group="reward"),
    Metric("reward_alarm", title="Reward alarm", group="reward"),
    Metric("labels", title="Labels", unit="labels", group="reward"),
)
"""Figures of a reward that is learnt; the formulas stand in `algorithms/learned_reward.py`."""

NORMS = (
    Metric("gradient_norm/<layer>", title="Norm of the gradient", unit="norm", group=""),
    Metric("update_norm/<layer>", title="Norm of the update", unit="norm", group=""),
    Metric("parameter_norm/<layer>", title="Norm of the parameters", unit="norm", group=""),
    Metric("adam_first_moment_norm/<layer>", title="Norm of Adam's first moment", unit="norm", group="moment_norm"),
    Metric("adam_second_moment_norm/<layer>", title="Norm of Adam's second moment", unit="norm", group="moment_norm"),
)
"""Norms of each layer, and of whole networks."""

HISTOGRAMS = (
    Metric("histogram/gradient", title="Gradient entries", group=""),
    Metric("histogram/action", title="Actions", group=""),
    Metric("histogram/action/<i>", title="Actions", group=""),
)

SATURATION = (Metric("saturation/<layer>", unit="share of activations", group=""),)

OTHERS = (
    Metric("eval_<name>", group="evaluation"),
    Metric("seconds/<name>", unit="seconds", group="runtime"),
    Metric("<name>_norm/<layer>", unit="norm", group=""),
    Metric("histogram/<name>", group=""),
)
"""Metrics of figures that are known by the beginning of their name alone."""

TABLE = (
    *ITERATION,
    *EPISODES,
    *WHOLE_EPISODES,
    *TIMES,
    *INFO,
    *SCENARIOS,
    *EVALUATION,
    *UPDATE,
    *REWARD,
    *NORMS,
    *SATURATION,
    *HISTOGRAMS,
    *OTHERS,
)
ALIASES = {metric.name: metric.aliases for metric in TABLE if metric.aliases}
SUMMARY_ALIASES = {alias.removeprefix("eval_"): metric.summary for metric in EVALUATION for alias in metric.aliases}
"""Names in the founding documents for the figures of an evaluation's summary, and our names for them."""

_EXACT = {metric.name: metric for metric in TABLE if "<" not in metric.name}
_PATTERNS = [
    (re.compile(re.sub(r"<\w+>", ".+", re.escape(metric.name))), metric) for metric in TABLE if "<" in metric.name
]


@functools.lru_cache(maxsize=4096)
def metric_of(name: str) -> Metric:
    """Return what is known of a figure, under its own name; of an unknown one that is its name alone."""
    found = _EXACT.get(name) or next((metric for known, metric in _PATTERNS if known.fullmatch(name)), Metric(name))
    title = found.title if "<" not in found.name else ""
    return found._replace(name=name, title=title or title_from(name))


def title_from(name: str) -> str:
    """Return a title for a figure that has none: a plain name in words, any other as it is."""
    return name.replace("_", " ").capitalize() if re.fullmatch(r"[a-z][a-z0-9_]*", name) else name


def also_called(figures: dict[str, float]) -> dict[str, float]:
    """Return those figures for which the founding documents have other names, under those names."""
    named = ((alias, figures[name]) for name in ALIASES.keys() & figures.keys() for alias in ALIASES[name])
    return {alias.removeprefix("-"): -value if alias.startswith("-") else value for alias, value in named}


def is_timing(name: str) -> bool:
    """Whether a figure says how long something took: those alone differ when a run is made again."""
    return name in ("elapsed_seconds", "steps_per_second") or name.startswith("seconds/")


def names_of(metrics: Iterable[Metric]) -> set[str]:
    """Return the names of some rows of the table."""
    return {metric.name for metric in metrics}
