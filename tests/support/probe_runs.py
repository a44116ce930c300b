"""Training PPO on a probe and holding what it learnt against the known answer; tests and benchmarks share it."""

import jax.numpy as jnp
import numpy as np
from dressed import DressedEnv

import ludus
from ludus.envs.batch import JaxEnv
from ludus.envs.native.probes import PROBES

GAMMA = 0.8
SETTINGS = {
    "batch_size": 256,
    "minibatch_size": 64,
    "epochs_per_update": 8,
    "learning_rate": 1e-2,
    "gamma": GAMMA,
    "entropy_coef": 0.0,
    "normalize_returns": False,  # so that the critic's own number is the value
    "network": ludus.MLP(hidden_sizes=(32,)),
}
SPECIAL = {
    # Without an entropy bonus one run in twenty settles on one action before it has found out what the memory is for.
    "memory": {
        "network": ludus.GRU(memory_size=8, hidden_sizes=(16,), shared=True),
        "minibatch_size": 64,
        "entropy_coef": 0.02,
    },
    "continuous-target": {"batch_size": 512, "learning_rate": 3e-3},
}
STEPS = {"memory": 60_000, "continuous-target": 60_000}


def train(name: str, seed: int, how: str) -> ludus.Trainer:
    env = JaxEnv(PROBES[name](), 16, name)
    env = DressedEnv(env, seed) if how == "host" else env
    ppo = ludus.PPO(**(SETTINGS | SPECIAL.get(name, {})))
    trainer = ludus.Trainer(ppo, env, ludus.Settings(seed=seed, eval_frequency=0, eval_episodes_final=0, verbose=False))
    result = trainer.train(total_steps=STEPS.get(name, 20_000))
    assert result.stopped_by == "total_steps"  # one that a signal cut short is no trial
    return trainer


def check(name: str, trainer: ludus.Trainer) -> dict[str, float]:
    """The largest error in value, and the share of actions that are right."""
    probe, policy = PROBES[name](), trainer.policy
    module = policy.state.network.merge(policy.state.parameters)
    memory = module.initial_memory(1)
    value_error, right = 0.0, 1.0
    for obs, value in probe.optimal_values(GAMMA):
        features = module.remember(memory, jnp.asarray(obs)[None])[1]
        value_error = max(value_error, abs(float(module.critic(features)[0]) - value))
        if name == "action-reward" or name == "matched-action":
            probabilities = np.exp(module.actor(features).log_probabilities[0])
            right = min(right, float(probabilities[probe.optimal_action(obs)]))
        if name == "continuous-target":
            right = float(abs(policy(np.asarray(obs))[0] - probe.optimal_action(obs)) < 0.02)
    if name == "memory":
        right = float(trainer.evaluate(100).returns.mean() == 1.0)
    return {"value_error": value_error, "right": right}
