"""After an iteration that has not happened, training goes on with environments that are where the state says."""

import re
from contextlib import closing

import gymnasium
import numpy as np
import pytest

import ludus
from ludus.rollout import runner

pytestmark = pytest.mark.slow

FAULTY_AT = 33


class Counting(gymnasium.Env):
    """Shows how many steps an episode has, of 100; once in its life, in its 33rd step, it goes wrong."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, how: str = "nan"):
        self.how, self.life, self.steps = how, 0, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.life, self.steps = self.life + 1, self.steps + 1
        if self.life == FAULTY_AT and self.how == "raises":
            raise RuntimeError("the simulator is out of order")
        reward = np.nan if self.life == FAULTY_AT else 1.0
        return np.full(1, self.steps, np.float32), reward, False, self.steps == 100, {}


@pytest.mark.requirement("S2.9")
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
@pytest.mark.parametrize(("how", "num_workers"), [("nan", 0), ("raises", 0), ("nan", 2)])
def test_nothing_that_never_happened_is_learnt_after_a_fault(how, num_workers, algorithm, monkeypatch):
    made = (
        ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1, network=ludus.MLP((4,)))
        if algorithm == "ppo"
        else ludus.SAC(unroll_length=32, batch_size=8, learning_starts=16, replay_size=500, network=ludus.MLP((4,)))
    )
    seen, collect = [], runner.HOST.collect

    def spied(*arguments, **others):
        collected = collect(*arguments, **others)
        seen.append(collected[1:])
        return collected

    monkeypatch.setattr(runner, "HOST", runner.HOST._replace(collect=spied))
    with closing(ludus.make_env(Counting, 2, num_workers=num_workers, how=how)) as env:
        trainer = ludus.Trainer(made, env, ludus.Settings(eval_frequency=0, verbose=False))
        trainer.final_episodes = 0
        faults = 0
        while trainer.record.steps < 640 and faults < 3:
            try:
                trainer.train(total_steps=640)
            except (ludus.LudusError, RuntimeError) as error:
                assert re.search("reward is not finite|out of order", str(error))
                assert trainer.record.iterations == 1
                faults += 1
        assert 0 < faults < 3
    lengths = []
    for rollout, stats in seen:
        steps = rollout.steps
        obs, next_obs = np.asarray(steps.obs)[..., 0], np.asarray(steps.next_obs)[..., 0]
        valid = np.ones(obs.shape, bool) if steps.valid is None else np.asarray(steps.valid)
        assert (next_obs - obs == 1)[valid].all()
        lengths += np.asarray(stats.lengths)[np.asarray(stats.lengths) > 0].tolist()
    assert lengths and set(lengths) == {100}
