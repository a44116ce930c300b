"""The gate before a champion: a policy takes its place only if it is better, on the same episodes, beyond luck."""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ludus.algorithms.policy import Policy
from ludus.training.evaluation import evaluate
from ludus.training.run_config import environment_in

EPISODES, SEED = 100, 20_011
"""The episodes that all policies of a name are compared on."""
RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class PolicyComparison:
    """The result of a comparison: the mean difference of returns, episode by episode, and its bootstrap interval."""

    challenger: float
    champion: float
    difference: float
    low: float
    high: float
    episodes: int

    @property
    def is_better(self) -> bool:
        """Whether the challenger is better, beyond what luck explains."""
        return self.low > 0

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"{self.challenger:.2f} against the champion's {self.champion:.2f} on the same {self.episodes} episodes: "
            f"difference {self.difference:+.2f}, {CONFIDENCE:.0%} interval [{self.low:.2f}, {self.high:.2f}]"
        )


def judge(challenger: np.ndarray, champion: np.ndarray) -> PolicyComparison:
    """Compare the returns of two policies on the same episodes, by a bootstrap over pairs."""
    differences = np.asarray(challenger, np.float64) - np.asarray(champion, np.float64)
    chosen = np.random.default_rng(SEED).integers(0, len(differences), (RESAMPLES, len(differences)))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(differences[chosen].mean(1), [tail, 100 - tail])
    means = float(np.mean(challenger)), float(np.mean(champion)), float(differences.mean())
    return PolicyComparison(*means, float(low), float(high), len(differences))


def compare(challenger: Policy, champion: Policy, config: dict[str, Any]) -> PolicyComparison:
    """Play both in the environment of a configuration; LudusError if it cannot be made here."""
    here = {name: config.get(name) for name in ("env", "env_options", "env_wrappers", "num_envs")}
    with contextlib.closing(environment_in(here, "it is not here")) as env:
        returns = [evaluate(policy, env, EPISODES, SEED).returns for policy in (challenger, champion)]
    return judge(*returns)
