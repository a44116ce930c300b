"""Training SAC on probes with real-valued actions and holding what it learnt against the known answer.

The temperature is fixed, so soft values have a closed form: where the reward does not depend on the action, the best
policy is uniform, and every state that goes on is worth alpha log 2 more (actions lie between -1 and 1).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from dressed import DressedEnv

import ludus
from ludus.envs.batch import JaxEnv
from ludus.envs.native.probes import PROBES, ContinuousTarget, Probe, SignedProbe
from ludus.spaces import Box
from ludus.types import Step

GAMMA, ALPHA = 0.8, 0.05
UNEVEN = Box(-0.3, 2.0, (1,))


def _continuous(name: str) -> type[Probe]:
    """Return a probe with one real action that nothing depends on."""
    return type(f"Continuous{PROBES[name].__name__}", (PROBES[name],), {"action_space": UNEVEN})


class PushedUp(ContinuousTarget):
    """Probe 4 for real actions: one step, the reward is the action. The best is the upper bound."""

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, action[0], True)

    def optimal_action(self, obs: tuple[float, ...]) -> float:
        return 2.0


class MatchedTarget(SignedProbe):
    """Probe 5 for real actions: one step, minus the squared distance to 1.5 or 0.2, by the sign that is shown."""

    action_space = UNEVEN

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        return state, Step(state, -((action[0] - jnp.where(state[0] > 0, 1.5, 0.2)) ** 2), True)

    def optimal_action(self, obs: tuple[float, ...]) -> float:
        return 1.5 if obs[0] > 0 else 0.2


SAC_PROBES: dict[str, type[Probe]] = {
    "constant-reward": _continuous("constant-reward"),
    "observed-reward": _continuous("observed-reward"),
    "delayed-reward": _continuous("delayed-reward"),
    "pushed-up": PushedUp,
    "matched-target": MatchedTarget,
    "endless-chain": _continuous("endless-chain"),
    "finite-chain": _continuous("finite-chain"),
    "continuous-target": ContinuousTarget,
    "loud-reset": _continuous("loud-reset"),
}
CHOOSES = ("pushed-up", "matched-target", "continuous-target")
"""Probes whose answer is an action; the others have one that is a value."""

SETTINGS = {
    "learning_rate": 2e-3,
    "gamma": GAMMA,
    "tau": 0.05,
    "alpha": ALPHA,
    "automatic_alpha": False,
    "batch_size": 128,
    "replay_size": 4096,
    "unroll_length": 8,
    "learning_starts": 500,
    "updates_per_step": 0.5,
    "network": ludus.MLP((32, 32), "tanh"),
}
SPECIAL = {name: {"alpha": 0.002} for name in CHOOSES}
STEPS = 12_000


def train(name: str, seed: int, how: str) -> ludus.Trainer:
    env = JaxEnv(SAC_PROBES[name](), 16, name)
    env = DressedEnv(env, seed) if how == "host" else env
    sac = ludus.SAC(**(SETTINGS | SPECIAL.get(name, {})))
    settings = ludus.Settings(seed=seed, eval_frequency=0, eval_episodes=1, eval_episodes_final=1, verbose=False)
    trainer = ludus.Trainer(sac, env, settings)
    result = trainer.train(total_steps=STEPS)
    assert result.stopped_by == "total_steps"  # one that a signal cut short is no trial
    return trainer


def soft_values(name: str) -> list[tuple[tuple[float, ...], float]]:
    """Return each observation's value of any action: reward, and what follows with its entropy."""
    entered = {  # the discounted number of states that are entered after the first, by when the episode ends
        "delayed-reward": [GAMMA, 0.0],
        "endless-chain": [GAMMA / (1 - GAMMA)],
        "finite-chain": [sum(GAMMA**later for later in range(1, 4 - step)) for step in range(4)],
        "loud-reset": [GAMMA / (1 - GAMMA)] * 2,
    }
    answers = SAC_PROBES[name]().optimal_values(GAMMA)
    entered = entered.get(name, [0.0] * len(answers))
    return [(obs, value + ALPHA * math.log(2) * n) for (obs, value), n in zip(answers, entered, strict=True)]


def check(name: str, trainer: ludus.Trainer) -> dict[str, float]:
    """The largest error in value, and the largest distance of a greedy action from the best."""
    learner = trainer.state.learner.learner
    critic = trainer.state.learner.networks.critic
    if name in CHOOSES:
        cases = ((-1.0,), (1.0,)) if name == "matched-target" else ((0.0,),)
        probe, policy = SAC_PROBES[name](), trainer.policy
        errors = [abs(float(policy(np.float32(obs))[0]) - probe.optimal_action(obs)) for obs in cases]
        return {"value_error": 0.0, "action_error": max(errors)}
    actions = jnp.linspace(-0.9, 0.9, 7)[:, None]
    errors = []
    for obs, value in soft_values(name):
        rows = jnp.tile(jnp.asarray(obs), (len(actions), 1))
        for i in range(2):
            got = critic.merge([leaf[i] for leaf in learner.parameters.critics])(rows, actions)
            errors.append(float(jnp.abs(got - value).max()))
    return {"value_error": max(errors), "action_error": 0.0}
