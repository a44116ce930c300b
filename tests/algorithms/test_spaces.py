"""Every algorithm on every kind of space: it trains, or refuses in one line that names the space."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import zoo

import ludus
from ludus.spaces import Box, flatten, leaves

pytestmark = pytest.mark.slow


class Subject(NamedTuple):
    """How to make an algorithm, and which action spaces it is for."""

    make: Callable[[], Any]
    takes: Callable[[Any], bool]
    steps: int


ALGORITHMS = {
    "PPO": Subject(
        lambda: ludus.PPO(
            batch_size=32,
            minibatch_size=16,
            epochs_per_update=1,
            normalize_observations=True,
            network=ludus.MLP(hidden_sizes=(8,)),
        ),
        lambda space: True,
        64,
    ),
    "SAC": Subject(
        lambda: ludus.SAC(
            learning_starts=16,
            unroll_length=4,
            batch_size=8,
            replay_size=32,
            normalize_observations=True,
            network=ludus.MLP(hidden_sizes=(8,)),
        ),
        lambda space: isinstance(space, Box) and space.is_float and space.is_bounded,
        64,
    ),
}
HERE = [(name, how) for name in zoo.CASES for how in ("gymnasium", "jax")]


@pytest.mark.parametrize(("case", "how"), HERE)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_space_trains_or_is_refused_by_name(algorithm, case, how):
    subject, env = ALGORITHMS[algorithm], ludus.make_env(zoo.make(case, how), 4)
    if not subject.takes(env.action_space):
        with pytest.raises(ludus.LudusError, match=r"action space \w+\(.* is not supported"):
            ludus.Trainer(subject.make(), env, ludus.Settings(verbose=False))
        return
    settings = ludus.Settings(eval_frequency=0, eval_episodes_final=4, verbose=False)
    trainer = ludus.Trainer(subject.make(), env, settings)
    before = trainer.policy.state.parameters
    result = trainer.train(total_steps=subject.steps)
    assert result.steps == subject.steps and result.updates > 0
    assert np.isfinite(result.evaluation.returns).all()
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, trainer.policy.state.parameters)
    assert any(jax.tree.leaves(changed))
    if how == "gymnasium":
        action = trainer.policy(env.reset([0, 1, 2, 3]))
        env.step(action)  # which insists on actions of its space
        for (_, leaf), part in zip(leaves(env.action_space), flatten(env.action_space, action), strict=True):
            assert part.shape == (4, *leaf.shape) and part.dtype == leaf.dtype
