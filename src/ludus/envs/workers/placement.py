"""The choice of a place for environments: this process, or as many workers as make a step of the batch fastest."""

import math

from ludus.envs.adapters.gymnasium_factory import Make, step_seconds
from ludus.envs.workers.messages import is_from_script, sendable
from ludus.runtime import processes
from ludus.types import LudusError

WORKER_COST_SECONDS = 50e-6
"""The cost of each worker in a step, measured by `benchmarks/workers.py` and rounded up."""
WORTHWHILE = 0.8
"""Workers are chosen if a step of the batch would take at most this share of what it takes in one process."""


def placed(count: int | str, make: Make, num_envs: int, id: str) -> tuple[int, str]:
    """Return how many workers there shall be, where `count` may be "auto", and in words why."""
    if isinstance(count, int):
        return count, f"{count} workers" if count else ""
    if num_envs == 1:
        return 0, ""
    try:
        if is_from_script(sendable(make, id)):
            return 0, "in this process (its class is in the script itself)"
    except LudusError:
        return 0, "in this process (it cannot be sent to workers)"
    seconds = step_seconds(make)
    if seconds is None:
        return 0, "in this process (not measured: some actions are forbidden)"
    best = workers_that_pay(seconds, num_envs, processes.cores())
    return best, f"{f'{best} workers' if best else 'in this process'} ({1e6 * seconds:.0f} µs a step)"


def workers_that_pay(step_seconds: float, num_envs: int, cores: int) -> int:
    """Return how many workers make a step of the batch fastest; 0 if none do so by enough."""
    alone = num_envs * step_seconds
    times = {
        count: math.ceil(num_envs / count) * step_seconds + count * WORKER_COST_SECONDS
        for count in range(2, min(num_envs, cores) + 1)
    }
    best = min(times, key=lambda count: times[count], default=0)
    return best if best and times[best] <= WORTHWHILE * alone else 0
