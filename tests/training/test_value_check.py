"""Values held against rollouts: numbers against closed forms, bounded time, the file and its figure, refusals."""

import dataclasses

import numpy as np
import pytest
from chain import Chain, Coin, chain_value

import ludus
from ludus.algorithms.critic import Critic
from ludus.algorithms.hyperparameters import register
from ludus.algorithms.policy import Policy
from ludus.cli.main import main
from ludus.envs.batch import JaxEnv
from ludus.report.figures import behaviour
from ludus.report.figures.drawing import unpacked
from ludus.runs.episode_file import BRANCH_RETURN, BRANCH_STEP, About, Episode, read_episode, write_episode
from ludus.runs.summary import Story
from ludus.training.policy_choice import ChosenPolicy
from ludus.training.record_episode import play_episode
from ludus.training.value_check import check_values, with_branches
from ludus.types import LudusError, Spec

ENV = JaxEnv(Chain(slips=0.25), 1, "chain")


@dataclasses.dataclass(frozen=True)
class DiscountedCoin(Coin):
    """A coin that knows its discount."""

    def discount(self):
        return 0.9


register(DiscountedCoin)


def chosen_coin(chance: float) -> ChosenPolicy:
    spec = Spec(ENV.observation_space, ENV.action_space, 1)
    coin = DiscountedCoin(chance)
    return ChosenPolicy(Policy(coin, (), spec, "chain"), Critic(coin, (), spec, "chain"), "final")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("value check") / "run"
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, network=ludus.MLP((8,)))
    env = ludus.make_env("gym:CartPole-v1", num_envs=2)
    settings = ludus.Settings(verbose=False, eval_episodes_final=2, record_behaviour=False)
    ludus.Trainer(ppo, env, settings, run_dir=run).train(total_steps=256)
    return run


@pytest.mark.slow
@pytest.mark.requirement("S0.10")
def test_branches_from_an_episodes_states_have_the_returns_that_the_bellman_equation_says():
    chosen = chosen_coin(0.8)
    episode = play_episode(chosen.policy, ENV, chosen.critic, seed=3)
    valued = with_branches(episode, chosen, ENV, 400)
    steps, returns = valued.arrays[BRANCH_STEP], valued.arrays[BRANCH_RETURN]
    np.testing.assert_array_equal(steps, np.arange(len(episode)))
    assert returns.shape == (len(episode), 400) and len(episode) >= 4
    for t in range(len(episode)):
        # Greedy, the coin always goes on; in branches it does so four times in five, and then may slip.
        wanted = chain_value(int(episode.arrays["obs"][t, 0]), 6 - t, 0.8 * 0.75, 0.9, 99)
        error = returns[t].std() / np.sqrt(400)
        assert abs(returns[t].mean() - wanted) <= 4 * error + 1e-3, t
    again = with_branches(episode, chosen, ENV, 400)
    np.testing.assert_array_equal(again.arrays[BRANCH_RETURN], returns)
    few = with_branches(episode, chosen, ENV, 400, seconds=0.0).arrays[BRANCH_RETURN]
    assert few.shape[1] == 2, "when time is up, no more are begun"
    np.testing.assert_allclose(few, returns[:, :2], rtol=1e-5)


@pytest.mark.slow
def test_the_command_plays_writes_and_draws_them(trained, capsys):
    assert main(["report", str(trained), "--branches", "3", "--no-images"]) == 0
    file, page = capsys.readouterr().out.splitlines()[-2:]
    episode = read_episode(file)
    assert episode.arrays[BRANCH_RETURN].shape == (min(24, len(episode)), 3)
    assert "Values against rollouts" in (trained / "report/index.html").read_text() and page.endswith("index.html")
    assert main(["report", str(trained), "--checkpoint", "latest", "--no-images"]) == 2
    assert "--checkpoint=latest: goes with --branches N" in capsys.readouterr().err
    for branches, told in (("1", "branches=1: must be at least 2"), ("3", "no critic whose values")):
        more = ["--checkpoint", "best_return_pi_ckpt"] if branches == "3" else []
        assert main(["report", str(trained), "--branches", branches, *more, "--no-images"]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.requirement("S0.10")
def test_evaluate_looks_ahead_with_the_critic_of_the_run(trained, capsys):
    words = ["evaluate", str(trained), "--episodes", "2", "--env", "jax:CartPole-v1"]
    looking = [*words, "--lookahead", "2", "--lookahead-depth", "3"]
    said = []
    for given in (words, looking, looking):
        assert main(given) == 0
        said.append(capsys.readouterr().out)
    assert said[1] == said[2] and said[0] != said[1]
    assert main([*words, "--lookahead-depth", "3"]) == 2
    assert "--lookahead-depth=3: goes with --lookahead N" in capsys.readouterr().err


def episode_with(returns: np.ndarray, value: np.ndarray) -> Episode:
    zeros = np.zeros(6, np.float32)
    arrays = {"obs": zeros[:, None], "action": zeros, "reward": zeros, "return": zeros, "value": value}
    arrays |= {BRANCH_STEP: np.array([0, 2, 5], np.int32), BRANCH_RETURN: returns}
    return Episode(About("jax:chain", "final", gamma=0.9, terminated=True), arrays)


def test_the_figure_shows_mean_and_interval_against_the_critic(tmp_path):
    from run_folders import learning_rows, make_run

    run = make_run(tmp_path / "run", learning_rows(20))
    returns = np.array([[1, 3], [2, 2], [0, 8]], np.float32)
    value = np.arange(6, dtype=np.float32)
    write_episode(episode_with(returns, value), run / "episodes/final.safetensors")
    figures = {figure.key: figure for figure in behaviour.draw(Story.read(run))}
    scatter, spread = figures["branches"].panels
    dots = scatter.traces[1]
    np.testing.assert_array_equal(unpacked(dots["x"]), [2, 2, 4])
    np.testing.assert_array_equal(unpacked(dots["y"]), [0, 2, 5])
    deviation = np.array([np.sqrt(2), 0, np.sqrt(32)])  # of a sample of two
    np.testing.assert_allclose(unpacked(dots["error_x"]["array"]), 1.96 * deviation / np.sqrt(2))
    low, high, mean, judged = spread.traces
    np.testing.assert_allclose(unpacked(low["y"]), np.quantile(returns, 0.05, axis=1), rtol=1e-6)
    np.testing.assert_allclose(unpacked(high["y"]), np.quantile(returns, 0.95, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(unpacked(mean["y"]), [2, 2, 4])
    np.testing.assert_array_equal(unpacked(judged["y"]), [0, 2, 5])


@pytest.mark.parametrize(
    ("steps", "returns"), [([0, 6], np.zeros((2, 3))), ([-1, 0], np.zeros((2, 3))), ([0, 1], np.zeros((3, 3)))]
)
def test_branches_that_do_not_belong_to_the_episode_are_not_read(tmp_path, steps, returns):
    episode = episode_with(np.zeros((3, 2), np.float32), np.zeros(6, np.float32))
    wrong = {BRANCH_STEP: np.array(steps, np.int32), BRANCH_RETURN: returns.astype(np.float32)}
    write_episode(dataclasses.replace(episode, arrays={**episode.arrays, **wrong}), tmp_path / "wrong.safetensors")
    with pytest.raises(LudusError, match="branch_"):
        read_episode(tmp_path / "wrong.safetensors")


@pytest.mark.slow
def test_an_environment_without_clones_is_one_line(tmp_path):
    pytest.importorskip("envpool")
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, network=ludus.MLP((8,)))
    env = ludus.make_env("envpool:CartPole-v1", num_envs=2)
    settings = ludus.Settings(verbose=False, eval_episodes_final=0, record_behaviour=False)
    ludus.Trainer(ppo, env, settings, run_dir=tmp_path / "run").train(total_steps=64)
    with pytest.raises(LudusError, match="cannot be cloned in the midst of an episode") as error:
        check_values(tmp_path / "run", branches=2)
    assert "\n" not in str(error.value)
