"""What an environment answers that is not what its spaces and Gymnasium say: one line that names it, never a guess."""

import dataclasses
from contextlib import closing

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

import ludus
from ludus.cli.main import main
from ludus.envs.host import answers
from ludus.spaces import Box, Discrete

BYTES = gym_spaces.Box(0, 255, (2,), np.uint8)


class Answering(gymnasium.Env):
    """Answers well, but in its third step as it is told."""

    action_space = gym_spaces.Discrete(2)

    def __init__(self, space=None, start=None, **third):
        self.observation_space = gym_spaces.Box(-1, 1, (1,)) if space is None else space
        self.start = np.zeros(self.observation_space.shape, self.observation_space.dtype) if start is None else start
        self.third, self.steps = third, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.start, {}

    def step(self, action):
        self.steps += 1
        answer = {"obs": self.start, "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        answer |= self.third if self.steps == 3 else {}
        if isinstance(answer["reward"], type):
            raise answer["reward"]("the simulator is out of order\nand says so in two lines")
        return tuple(answer.values())


def after_three_steps(*, num_workers=0, **third):
    with closing(ludus.make_env(lambda: Answering(**third), 2, num_workers=num_workers)) as env:
        env.reset([5, 6])
        for _ in range(3):
            outcome = env.step(np.zeros(2, np.int32))
        return outcome


@pytest.mark.requirement("S2.25")
@pytest.mark.parametrize(("third", "message"), [
    ({"space": BYTES, "obs": np.array([0, 300])}, "its observation holds 300, but must be uint8"),
    ({"space": BYTES, "obs": np.array([-1.0, 0.0])}, "its observation holds -1.0, but must be uint8"),
    ({"space": BYTES, "obs": np.array([0.0, np.nan])}, "its observation holds nan, but must be uint8"),
    ({"space": gym_spaces.Discrete(3), "start": 0, "obs": 7}, "its observation holds 7, but must be int32 from 0 to 2"),
    ({"space": gym_spaces.Discrete(3), "start": 0, "obs": np.int32(7)}, "its observation holds 7, but must be int32"),
    ({"space": gym_spaces.Discrete(3, start=1), "start": 1, "obs": 0}, "its observation holds 0, but must be int32"),
    ({"space": gym_spaces.MultiDiscrete([2, 3]), "obs": np.array([1, 3])}, "its observation holds 3, but must be"),
    ({"space": gym_spaces.MultiBinary(2), "obs": np.array([1, 2])}, "its observation holds 2, but must be int32"),
    ({"obs": np.array(["a"])}, "its observation is array(['a'], dtype='<U1'), which holds no real numbers"),
    ({"obs": np.array([1j])}, "its observation is array([0.+1.j]), which holds no real numbers"),
    ({"obs": "left"}, "its observation is 'left', which holds no real numbers"),
    ({"obs": np.zeros(3)}, "its observation has the shape (3,), but its observation space says (1,)"),
    ({"reward": "1.5"}, "its reward is '1.5', which holds no real numbers"),
    ({"reward": None}, "its reward is None, which holds no real numbers"),
    ({"reward": 1j}, "its reward is 1j, which holds no real numbers"),
    ({"reward": np.ones(2)}, "its reward is array([1., 1.]), but must be one number"),
    ({"terminated": np.nan}, "its terminated is nan, but must be True or False"),
    ({"terminated": None}, "its terminated is None, which holds no real numbers"),
    ({"truncated": "False"}, "its truncated is 'False', which holds no real numbers"),
    ({"truncated": 2}, "its truncated is 2, but must be True or False"),
    ({"info": [1, 2]}, "its info is [1, 2], but must be a dict"),
    ({"reward": ValueError}, "raised ValueError: the simulator is out of order and says so in two lines in step()"),
])  # fmt: skip
def test_what_is_no_answer_is_one_line_that_names_environment_field_and_step(third, message):
    with pytest.raises(ludus.LudusError) as caught:
        after_three_steps(**third)
    said = str(caught.value)
    assert message in said and "\n" not in said
    assert "environment 0 (seed 5, step 3 of its episode)" in said


@pytest.mark.parametrize("reward", [2, 2.0, np.float64(2), np.array([2.0]), np.array(2), np.int8(2)])
@pytest.mark.parametrize("flag", [True, np.True_, 1, np.array([True]), 1.0])
def test_what_is_a_number_or_a_flag_is_taken(reward, flag):
    outcome = after_three_steps(reward=reward, truncated=flag)
    assert outcome.reward.tolist() == [2.0, 2.0] and outcome.truncated.tolist() == [True, True]
    assert not outcome.terminated.any()


def test_whole_numbers_of_another_type_are_taken():
    outcome = after_three_steps(space=BYTES, obs=np.array([3.0, 255.0]))
    assert outcome.next_obs.tolist() == [[3, 255]] * 2 and outcome.next_obs.dtype == np.uint8
    with pytest.raises(ValueError, match="which holds no numbers"):
        answers.number([[1], [1, 2]])


class Raising(Answering):
    """Raises in its third step."""

    def __init__(self):
        super().__init__(reward=ValueError)


@pytest.mark.requirement("S2.25")
def test_an_environment_that_raises_ends_the_command_with_one_line_and_leaves_its_traceback_in_the_log(
    tmp_path, capsys, monkeypatch
):
    gymnasium.register("Raising-v0", Raising)
    try:
        command = ["train", "env=Raising-v0", "num_envs=2", "num_workers=0", f"run_dir={tmp_path / 'run'}"]
        assert main([*command, "total_steps=64", "verbose=false"]) == 2
    finally:
        del gymnasium.registry["Raising-v0"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "raised ValueError: the simulator is out of order" in line and line.startswith("ludus: gym:Raising-v0: ")
    assert 'raise answer["reward"]' in (tmp_path / "run" / "log.txt").read_text()


@dataclasses.dataclass(frozen=True)
class DeadEnd(ludus.Environment):
    """Forbids every action from its fourth step on."""

    observation_space = Box(0.0, 9.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(1)

    def step(self, state, action, key):
        return state + 1, ludus.Step(jnp.zeros(1), 1.0, jnp.asarray(False))

    def action_mask(self, state):
        return jnp.broadcast_to(state < 3, (2,))


@pytest.mark.slow
@pytest.mark.requirement("S2.25")
def test_a_mask_that_forbids_every_action_is_named_with_environment_and_step():
    algorithm = ludus.PPO(batch_size=32, minibatch_size=32, epochs_per_update=1, network=ludus.MLP((4,)))
    env = ludus.make_env(DeadEnd(), 4)
    trainer = ludus.Trainer(algorithm, env, ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False))
    with pytest.raises(ludus.LudusError, match="the action_mask of environment 0 forbids every action in step 4"):
        trainer.train(total_steps=64)
