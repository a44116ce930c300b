"""Choosing one of a run's policies: the final one, one that was kept on the way, or that of a checkpoint."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ludus.algorithms.critic import FINAL as FINAL_CRITIC
from ludus.algorithms.critic import Critic, load_critic
from ludus.algorithms.policy import FINAL, Policy, load_policy
from ludus.algorithms.reward_model import FINAL as FINAL_REWARD
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.episode_file import About
from ludus.runs.folder import read_config, read_identity
from ludus.runs.journal import JOURNAL, read_journal
from ludus.training.past_policies import learned_at, untrained
from ludus.types import LudusError

POLICIES = "policies"
MOST_STAGES = 12
"""So many policies at most tell how a run went."""


@dataclass(frozen=True)
class ChosenPolicy:
    """A policy of a run, and what is known of it."""

    policy: Policy
    critic: Critic | None
    label: str
    steps: int | None = None
    iteration: int | None = None

    def about(self, config: dict[str, Any]) -> About:
        """Return the beginning of an episode's header."""
        algorithm = config.get("algorithm")
        name = str(algorithm.get("name", "")) if isinstance(algorithm, dict) else ""
        return About(self.policy.env_id, self.label, algorithm=name, steps=self.steps, iteration=self.iteration)


def choose(run: Path, checkpoint: str | None = None) -> ChosenPolicy:
    """Return a policy of a run.

    Args:
        run: the run folder.
        checkpoint: "latest", "best" or the step of a checkpoint, or the name of a file in the run's `policies/`; None
            is the final policy or, while there is none, the latest checkpoint.
    """
    policies = _policies(run)
    if checkpoint is None and FINAL.stem not in policies:
        checkpoint = "latest"
    if checkpoint in (None, "final", FINAL.stem):
        critic = load_critic(run) if (run / FINAL_CRITIC).is_file() else None
        identity = read_identity(run)
        return ChosenPolicy(load_policy(run), critic, "final", *_counts(identity))
    if checkpoint in policies:
        return ChosenPolicy(load_policy(policies[checkpoint]), None, checkpoint, *_when(run, checkpoint))
    steps = Checkpoints(run).steps()
    if not steps or (checkpoint not in ("latest", "best") and checkpoint not in map(str, steps)):
        known = [*(["latest", "best"] if steps else []), *map(str, steps), "final", *policies]
        raise LudusError(f"{run}: no checkpoint {checkpoint}; there are {', '.join(dict.fromkeys(known))}")
    policy, critic, record = learned_at(run, str(checkpoint))
    label = "best" if checkpoint == "best" else str(record["steps"])
    return ChosenPolicy(policy, critic, label, record["steps"], record["iteration"])


def stages(run: Path) -> Iterator[ChosenPolicy]:
    """Yield the policies of a run in the order in which they were learnt; of those at the same step, one."""
    yield ChosenPolicy(untrained(run), None, "untrained", 0, 0)
    by_step: dict[int, Callable[[], ChosenPolicy]] = {
        step: partial(choose, run, str(step)) for step in Checkpoints(run).steps()
    }
    for name in _policies(run):
        steps = None if name == FINAL.stem else _when(run, name)[0]
        if steps:  # a policy with a name rather than the checkpoint of the same step
            by_step[steps] = partial(choose, run, name)
    last = choose(run)
    found = sorted(step for step in by_step if last.steps is None or step < last.steps)
    if len(found) > MOST_STAGES - 2:
        found = [found[i] for i in np.linspace(0, len(found) - 1, MOST_STAGES - 2).round().astype(int)]
    for step in found:
        yield by_step[step]()
    yield last


def _policies(run: Path) -> dict[str, Path]:
    files = sorted((run / POLICIES).glob("*.safetensors"))
    return {path.stem: path for path in files if "critic" not in path.stem and path.name != FINAL_REWARD.name}


def _counts(row: dict[str, Any]) -> tuple[int | None, int | None]:
    steps, iteration = row.get("steps"), row.get("iteration")
    return (steps if isinstance(steps, int) else None), (iteration if isinstance(iteration, int) else None)


def _when(run: Path, name: str) -> tuple[int | None, int | None]:
    """Return the steps and iterations after which a policy with a name was saved, as far as the journal tells."""
    try:
        journal, config = _journal(run, (run / JOURNAL).stat().st_mtime_ns), read_config(run)
    except (OSError, LudusError):
        return None, None
    if name == "best_pi_ckpt" and isinstance(best := read_identity(run).get("best"), dict):
        rows = (row for row in journal if row.get("kind") == "train" and row.get("steps") == best.get("steps"))
        return _counts(next(rows, {}))
    if name == "best_eval_pi_ckpt":
        evaluations = [row for row in journal if isinstance(row.get("eval_return_mean"), int | float)]
        return _counts(max(evaluations, key=lambda row: row["eval_return_mean"], default={}))
    number, total, count = name.removeprefix("pi_ckpt"), config.get("total_steps"), config.get("num_checkpoints")
    if not number.isdigit() or not isinstance(total, int) or not isinstance(count, int):
        return None, None
    milestone = -(-total * int(number) // (count + 1))
    rows = (row for row in journal if row.get("kind") == "train" and row.get("steps", 0) >= milestone)
    return _counts(next(rows, {}))


@lru_cache(maxsize=1)
def _journal(run: Path, written: int) -> list[dict[str, Any]]:
    """Read a journal; once for as long as nothing is written to it."""
    return read_journal(run)
