"""`ludus video`: any policy of a run, filmed without a display; what cannot be is one line."""

import shutil

import films
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.cli.main import main
from ludus.envs import registry
from ludus.report.video.overlay import SIZE
from ludus.runs.episode_file import read_episode
from ludus.spaces import Box, Discrete
from ludus.training.film import choose, film, film_episode
from ludus.training.record_episode import play_episode
from ludus.types import LudusError, Spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cart(tmp_path_factory):
    """A run with three checkpoints, policies from on the way and a final one."""
    options = {"num_checkpoints": 2, "checkpoint": ludus.CheckpointOptions(every_iterations=2, keep_last=9)}
    return films.trained(tmp_path_factory.mktemp("runs") / "cart", "CartPole-v1", 384, **options)


def check_film(run, name):
    """Decode a film and compare every number on it with the episode; return the episode."""
    episode = read_episode(run / "episodes" / f"{name}.safetensors")
    path = run / "videos" / f"{name}.mp4"
    header, lines = films.side(path)
    seen = films.watch(path)
    assert len(seen) == len(lines) == len(episode) + round(header["rate"])
    assert {picture.shape for picture in seen} == {(SIZE[1], SIZE[0], 3)}
    films.assert_drawn_is_recorded(episode, lines)
    scenes = np.stack([picture[:400, :600] for picture in seen[: len(episode)]]).astype(int)
    assert np.abs(np.diff(scenes[[0, len(episode) // 2, -1]], axis=0)).max() > 60, "something moves"
    return episode


@pytest.mark.requirement("S4.23", "S4.24", "S1.35", "S2.29")
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "gym:LunarLander-v3", "envpool:BipedalWalker-v3"])
def test_the_final_policy_is_filmed(id, tmp_path, capsys):
    run = films.trained(tmp_path / "run", id)
    assert main(["video", str(run)]) == 0
    episode = check_film(run, "final")
    assert episode.about.steps == 128 and episode.about.iteration == 2 and episode.get("value") is not None
    assert "final.mp4" in capsys.readouterr().out
    if "Walker" in id:
        assert episode.about.env == "gym:BipedalWalker-v3" and "knee 2 angle" in episode.signals


@pytest.mark.requirement("S4.23")
@pytest.mark.parametrize(
    ("asked", "label", "steps"),
    [("latest", "384", 384), ("128", "128", 128), ("pi_ckpt1", "pi_ckpt1", 128), (None, "final", 384)],
)
def test_any_policy_of_a_run_can_be_chosen(cart, asked, label, steps):
    chosen = choose(cart, asked)
    assert (chosen.label, chosen.steps, chosen.iteration) == (label, steps, steps // 64)
    assert (chosen.critic is None) == (asked == "pi_ckpt1")


def test_a_checkpoint_is_the_policy_of_then(cart):
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    state = {asked: choose(cart, asked) for asked in ("128", "pi_ckpt1", "384", "final")}
    logits = {
        name: np.asarray(c.policy.algorithm.distribution(c.policy.state, (), obs)[1].logits)
        for name, c in state.items()
    }
    np.testing.assert_array_equal(logits["128"], logits["pi_ckpt1"])
    np.testing.assert_array_equal(logits["384"], logits["final"])
    assert not np.array_equal(logits["128"], logits["384"])


def test_a_run_that_is_not_over_is_filmed_from_its_latest_checkpoint(cart, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(cart, run)
    shutil.rmtree(run / "policies")
    assert choose(run).label == "384"


@pytest.mark.requirement("S2.29")
def test_the_worst_and_the_best_episode_are_filmed(tmp_path):
    run = films.trained(tmp_path / "run", "CartPole-v1", env_options={"max_episode_steps": 60})
    said = []
    film(run, among=12, seed=5, say=said.append)
    policy, env = ludus.load_policy(run), ludus.make_env("CartPole-v1", num_envs=4, max_episode_steps=60)
    evaluation = ludus.evaluate(policy, env, 12, seed=5)
    assert evaluation.returns.min() < evaluation.returns.max()
    for name, value in (("worst", evaluation.returns.min()), ("best", evaluation.returns.max())):
        episode = check_film(run, f"final-{name}")
        assert episode.arrays["return"][-1] == value == evaluation.returns[episode.about.index]
    assert str(evaluation) in said[0]


def test_several_episodes_and_a_gif(cart, capsys):
    assert main(["video", str(cart), "--episodes", "2", "--gif", "--seed", "3"]) == 0
    first, second = (check_film(cart, name) for name in ("final", "final-episode1"))
    assert not np.array_equal(first.arrays["obs"][0], second.arrays["obs"][0])
    assert (cart / "videos" / "final.gif").read_bytes()[:6] == b"GIF89a"


@pytest.mark.requirement("S4.23")
def test_a_grid_shows_how_it_learned(cart, capsys):
    assert main(["video", str(cart), "--grid"]) == 0
    header, lines = films.side(cart / "videos" / "grid.mp4")
    labels = [tile["episode"]["label"] for tile in header["tiles"]]
    assert labels == ["untrained", "pi_ckpt1", "pi_ckpt2", "final"]
    assert [tile["episode"]["steps"] for tile in header["tiles"]] == [0, 128, 256, 384]
    assert len(films.watch(cart / "videos" / "grid.mp4")) == len(lines)
    starts = [read_episode(cart / "episodes" / f"{label}.safetensors").arrays["obs"][0] for label in labels]
    assert all(np.array_equal(start, starts[0]) for start in starts), "all begin alike"
    for line in lines:
        for tile, label in zip(line["tiles"], labels, strict=True):
            recorded = read_episode(cart / "episodes" / f"{label}.safetensors").arrays["return"]
            assert np.float32(tile["return"]) == recorded[tile["row"]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--checkpoint", "77"], "no checkpoint 77; there are latest, best, 128, 256, 384, final"),
        (["--checkpoint", "nonsense"], "no checkpoint nonsense; there are"),
        (["--episodes", "0"], "--episodes=0: must be at least 1"),
        (["--seed", "-1"], "--seed=-1: must be at least 0"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_mistakes_are_one_line(cart, words, says, capsys):
    assert main(["video", str(cart), *words]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert main(["video", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


class Line(ludus.Environment):
    """An environment that nobody has drawn."""

    observation_space = Box(-10.0, 10.0, (2,))
    action_space = Discrete(2)
    max_episode_steps = 12

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return isinstance(other, Line)

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, x, action, key):
        x = x + jnp.where(action == 1, 0.3, -0.2)
        return x, ludus.Step(obs=x, reward=x[0], terminated=jnp.abs(x[0]) > 9)


@pytest.mark.requirement("S4.23")
def test_an_environment_without_pictures_shows_its_signals_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "_registered", {})
    ludus.register_env("Line", Line)
    run = films.trained(tmp_path / "run", "Line", env_options={"max_episode_steps": 12})
    assert main(["video", str(run)]) == 0
    told = capsys.readouterr().out
    assert "jax:Line: it has no pictures of itself; the film shows its signals instead" in told
    check_film(run, "final")


class Painter(gymnasium.Env):
    """Draws itself, in one of several wrong ways."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, render_mode=None, fault=""):
        self.render_mode, self.fault, self.t = render_mode, fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), 1.0, self.t == 8, False, {}

    def render(self):
        if self.fault == "at once" or (self.fault == "later" and self.t == 5):
            raise RuntimeError("no GL context\nand more")
        return None if self.fault == "nothing" else np.full((50, 50, 3), 20 * self.t, np.uint8)

    def _obs(self):
        noise = np.random.default_rng().random() if self.fault == "forgets" else 0.0
        return np.array([0.1 * self.t, noise], np.float32)


def painted(tmp_path, fault):
    """Play an episode of such an environment and film it: the files, and what was said."""
    env, algorithm = ludus.make_env(Painter, render_mode="rgb_array", fault=fault), ludus.PPO()
    spec = Spec(env.observation_space, env.action_space, 1)
    state = algorithm.policy(algorithm.init(jax.random.key(0), spec))
    said = []
    episode = play_episode(ludus.Policy(algorithm, state, spec, env.id), env)
    return film_episode(episode, tmp_path / "x.mp4", env, say=said.append), said


def test_a_users_own_class_is_filmed_from_python(tmp_path):
    made, said = painted(tmp_path, "")
    seen = films.watch(made[0])
    assert said == [] and len(seen) == 8 + 10
    assert [int(picture[200, 300].mean()) // 10 * 10 for picture in seen[1:6]] == pytest.approx(
        [20, 40, 60, 80, 100], abs=10
    )


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("at once", "no GL context"),
        ("nothing", "render() returned NoneType"),
        ("forgets", "object:Painter: does not repeat itself (step 0); it cannot be filmed"),
    ],
)
def test_what_cannot_be_drawn_at_all_shows_its_signals(tmp_path, fault, reason):
    made, said = painted(tmp_path, fault)
    assert len(films.watch(made[0])) == 8 + 30
    assert said == [f"object:Painter: it cannot be drawn ({reason}); the film shows its signals instead"]


def test_what_fails_on_the_way_is_one_line(tmp_path):
    with pytest.raises(LudusError, match=r"x.mp4: object:Painter could not be drawn \(no GL context\)$"):
        painted(tmp_path, "later")
    assert list(tmp_path.iterdir()) == []
