"""The statistics of a rollout as one block of text: three sections, for people who watch numbers scroll by."""

from typing import Any, NamedTuple

WIDTH = 35
MISSING = "-"
"""The text shown where an algorithm has no such figure, or no episode ended."""


class Recent(NamedTuple):
    """The figures of the latest episodes."""

    episodes: int
    mean_length: float | None
    mean_return: float | None
    success_rate: float | None
    success_rule: str = ""
    """What made an episode a success."""


def block(row: dict[str, Any], rollout_length: int, recent: Recent, limits: dict[str, Any]) -> str:
    """Return the block of one iteration: its journal row, and what the run was asked for.

    `limits` holds `total_steps` and, if the algorithm has one, `clip_epsilon`; either may be None.
    """
    sections = {
        "ROLLOUT STATISTICS": {
            "mean_ep_len": _number(row.get("episode_length_mean"), ".2f"),
            "mean_ep_return": _number(row.get("episode_return_mean"), ".2f"),
            "mean_reward": _number(row.get("reward_mean"), ".4f"),
            "mean_clipped_ratio": _number(row.get("clip_fraction"), ".4f"),
            "approx_kl": _number(row.get("approx_kl"), ".6f"),
            "rollout_len": str(rollout_length),
            "time_elapsed": _time(row, rollout_length),
        },
        f"RECENT {recent.episodes} EPISODES": {
            "mean_ep_len": _number(recent.mean_length, ".2f"),
            "mean_ep_return": _number(recent.mean_return, ".2f"),
            "success_rate": _number(recent.success_rate, ".2%", f" ({recent.success_rule})"),
        },
        "TRAINER STATISTICS": {
            "episodes_count": str(row["episodes"]),
            "timesteps_count": str(row["steps"]),
            "rollouts_count": str(row["iteration"]),
            "total_timesteps": MISSING if limits.get("total_steps") is None else str(limits["total_steps"]),
            "clip_range": _number(limits.get("clip_epsilon"), "g"),
        },
    }
    parts = ["\n".join([title, "-" * WIDTH, *map(_line, figures.items())]) for title, figures in sections.items()]
    return "\n".join(["=" * WIDTH, "\n\n".join(parts), "=" * WIDTH])


def _line(figure: tuple[str, str]) -> str:
    return f"  {figure[0] + ':':<20}{figure[1]}"


def _time(row: dict[str, Any], rollout_length: int) -> str:
    """Return how long the rollout took; where it is one program with its update, how long both did."""
    if "seconds/environment" in row:
        return _number(row["seconds/environment"] + row["seconds/act"], ".2f", " s")
    rate = row.get("steps_per_second")
    return _number(rollout_length / rate if rate else None, ".2f", " s (with its update)")


def _number(value: float | None, form: str, unit: str = "") -> str:
    return MISSING if value is None else f"{value:{form}}{unit}"
