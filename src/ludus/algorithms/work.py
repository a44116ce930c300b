"""A rough count of the arithmetic that learning takes: it decides whether a program is compiled quickly or well.

A pass through a network is two operations for each parameter and sample forwards, and twice as many backwards.
"""

from typing import TYPE_CHECKING

from ludus.algorithms.hyperparameters import PROBES
from ludus.algorithms.schedules import Schedule
from ludus.networks.network import network_for
from ludus.networks.soft_actor_critic import NUM_CRITICS, soft_networks
from ludus.types import Spec

if TYPE_CHECKING:
    from ludus.algorithms.ppo import PPO
    from ludus.algorithms.sac import SAC


def ppo_work(ppo: "PPO", spec: Spec, total_steps: int | None) -> float:
    """Forwards and backwards for every sample in every epoch."""
    if total_steps is None:
        return float("inf")
    return 6.0 * network_for(ppo.network, spec).size * ppo.epochs_per_update * total_steps


def sac_work(sac: "SAC", spec: Spec, total_steps: int | None) -> float:
    """Each critic 3 + 1 + 2 passes (learning, targets, the actor's loss), the actor 1 + 3."""
    if total_steps is None:
        return float("inf")
    networks, rate = soft_networks(sac.network, spec), sac.updates_per_step
    passes = 6 * NUM_CRITICS * networks.critic.size + 4 * networks.actor.size
    updates_per_step = max(rate.probed(PROBES)) if isinstance(rate, Schedule) else float(rate)
    return 2.0 * passes * sac.batch_size * updates_per_step * total_steps
