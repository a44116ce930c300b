"""A state that holds a NaN is never saved; the last good one stays, and `debug` says where the NaN came from."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from resume_runs import iterations, trainer
from safetensors.numpy import load_file

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.runs.checkpoint import format
from ludus.runs.checkpoint.store import Checkpoints
from ludus.training import state_arrays
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.state_arrays import first_bad, name_of
from ludus.training.verify import debug, state_of

pytestmark = pytest.mark.slow

STOP = CheckpointOptions(every_iterations=1, every_minutes=0, keep_last=100, on_error="stop")


class Poisonous(gymnasium.Env):
    """Gives a NaN, or an infinity, in one of sixty episodes."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, where, value=np.nan):
        self.where, self.value = where, value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.is_bad = 0, self.np_random.random() < 1 / 60
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.length += 1
        obs, reward, is_now = np.float32([self.length, action]), 1.0, self.is_bad and self.length == 7
        if is_now and self.where == "observation":
            obs[1] = self.value
        if is_now and self.where == "reward":
            reward = self.value
        return obs, reward, self.length >= 10, False, {}


@pytest.mark.requirement("S4.16")
@pytest.mark.parametrize(("where", "value"), [("observation", np.nan), ("reward", np.nan), ("reward", np.inf)])
def test_a_bad_number_of_an_environment_ends_the_run_and_debug_names_it(where, value, tmp_path):
    def made():
        return ludus.make_env(Poisonous, num_envs=2, where=where, value=value)

    ppo = ludus.PPO(batch_size=32, minibatch_size=16, epochs_per_update=1, network=ludus.MLP((8,)))
    options = CheckpointOptions(every_iterations=3, every_minutes=0, keep_last=100)
    more = {"checkpoint": options, "eval_frequency": 0, "verbose": False, "seed": 1}
    run = ludus.Trainer(ppo, made(), ludus.Settings(**more), run_dir=tmp_path / "run")
    with pytest.raises(ludus.LudusError, match=rf"{where} is not finite \(NaN or Inf\) in iteration \d+") as caught:
        run.train(total_steps=32 * 200)
    iteration = int(str(caught.value).partition("in iteration ")[2].partition(",")[0])
    assert iteration > 3
    assert Checkpoints(tmp_path / "run").latest() == 32 * ((iteration - 1) // 3 * 3)
    assert first_bad(state_of(tmp_path / "run")) is None
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    finding = debug(tmp_path / "run", env=made(), say=lambda _: None)
    assert finding is not None
    assert (finding.iteration, finding.what) == (iteration, where)
    assert ("obs" if where == "observation" else "reward") in finding.leaf
    batch = load_file(finding.batch)
    assert [name for name, array in batch.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.requirement("S4.16")
@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("ppo jax", "learner/parameters"), ("ppo jax", "learner/optimizer"), ("ppo jax", "learner/observations"),
        ("sac jax", "learner/learner"), ("sac jax", "learner/replay/frames"),
        ("sac jax", "learner/replay/transitions/reward"), ("sac jax in pieces", "learner/replay/frames"),
        ("sac jax in pieces", "learner/replay/transitions/action"),
    ],
)  # fmt: skip
def test_a_state_with_a_nan_anywhere_in_the_learner_is_not_saved(case, part, tmp_path, monkeypatch):
    if "pieces" in case:
        monkeypatch.setattr(format, "BLOCK_BYTES", 512)
        monkeypatch.setattr(state_arrays, "BLOCK_BYTES", 512)
        monkeypatch.setattr(state_arrays, "LONG_BYTES", 512)
    case = case.removesuffix(" in pieces")
    made = trainer(case, tmp_path / "run", checkpoint=STOP, eval_frequency=0)
    made.train(total_steps=iterations(case, 3))
    steps = Checkpoints(tmp_path / "run").steps()
    poisoned = []

    def poison(path, leaf):
        name = name_of(path)
        if not poisoned and name.startswith(part) and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            poisoned.append(name)
            return leaf.at[(0,) * leaf.ndim].set(jnp.nan)
        return leaf

    made._state = jax.tree_util.tree_map_with_path(poison, made.state)
    assert poisoned
    record = {**Checkpoints(tmp_path / "run").open(steps[-1]).record, "steps": 10**6, "iteration": 99}
    made.keeper.written = {}  # as if nothing were written yet: every piece is looked at
    made.keeper.save(made.state, {}, record, lambda: None)
    with pytest.raises(ludus.LudusError, match=f"{poisoned[0]} holds a NaN or an infinity: this state is not saved"):
        made.keeper.settle()
    assert Checkpoints(tmp_path / "run").steps() == steps
    assert first_bad(state_of(tmp_path / "run")) is None


def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved_and_debug_names_the_operation(tmp_path):
    made = trainer("ppo jax", tmp_path / "run", checkpoint=STOP, eval_frequency=0)
    made.train(total_steps=iterations("ppo jax", 2))
    made.loop.arrays = as_arrays(dataclasses.replace(made.algorithm, learning_rate=1e38, max_grad_norm=1e38))
    with pytest.raises(ludus.LudusError, match=r"(loss|gradient|parameter|action) is not finite"):
        made.train(total_steps=iterations("ppo jax", 6))
    assert first_bad(state_of(tmp_path / "run")) is None


class Overflowing(Poisonous):
    """Its rewards are finite, and their sums are not."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 3e38, *rest


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_return_that_overflows_is_left_out_of_the_journal_and_of_what_is_saved(tmp_path):
    env = ludus.make_env(Overflowing, num_envs=2, where="nowhere", value=np.inf)
    ppo = ludus.PPO(batch_size=32, minibatch_size=16, network=ludus.MLP((8,)), normalize_rewards=False)
    run = ludus.Trainer(
        ppo, env, ludus.Settings(checkpoint=STOP, eval_frequency=1, verbose=False), run_dir=tmp_path / "run"
    )
    try:
        run.train(total_steps=128)
    except ludus.LudusError as error:
        assert "is not finite" in str(error)  # that is what may end it, and nothing else
