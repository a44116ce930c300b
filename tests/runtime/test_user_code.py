"""Code by name: third-party environments and wrappers, found again by every verb and child; a stranger's never."""

import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import ludus
from ludus.cli import main as cli
from ludus.runs.folder import read_config, read_identity
from ludus.runtime import processes, user_code

pytestmark = pytest.mark.slow

PACKAGE = """
import os, pathlib
import gymnasium, numpy as np

with pathlib.Path(__file__).with_name("imports.txt").open("a") as file:
    file.write("imported ")


class Far(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Box(-9, 9, (2,)), "name": gymnasium.spaces.Text(4)}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.place = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": self.place, "name": "far"}, {}

    def step(self, action):
        self.t, self.place = self.t + 1, self.place + np.float32(0.1 * action)
        return {"place": self.place, "name": "far"}, float(action), self.t == 8, False, {}

    def render(self):
        return np.full((32, 32, 3), 9 * self.t, np.uint8)


class Doubled(gymnasium.RewardWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


gymnasium.register("Far-v3", Far)
"""
ENV = "gym:far_away:Far-v3"
NAMES = {"far_away:Far-v3", "gymnasium.wrappers:FilterObservation", "gymnasium.wrappers:FlattenObservation",
         "far_away:Doubled"}  # fmt: skip
WRAPPERS = (
    "[{name:gymnasium.wrappers:FilterObservation,filter_keys:[place]},"
    "gymnasium.wrappers:FlattenObservation,{name:far_away:Doubled,factor:10}]"
)
TINY = ["algorithm.batch_size=32", "algorithm.minibatch_size=32", "algorithm.epochs_per_update=1", "num_envs=2"]


def forget() -> None:
    """Make this process one that has imported nothing of the package."""
    sys.modules.pop("far_away", None)
    gymnasium.registry.pop("Far-v3", None)
    user_code._followed.clear()
    user_code._is_all_allowed = False


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A user with a configuration folder of their own, whose project holds a package; and another folder."""
    path = list(sys.path)
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "far_away.py").write_text(PACKAGE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(project)
    forget()
    yield project, elsewhere
    forget()
    sys.path[:] = path


def train(*words: str) -> int:
    return cli.main(["train", f"env={ENV}", f"env_wrappers={WRAPPERS}", *TINY, "verbose=false", *words])


def remembered(tmp_path: Path) -> Path:
    return tmp_path / "settings" / "ludus" / "code.json"


@pytest.mark.requirement("S2.25")
def test_every_verb_and_every_child_finds_a_package_that_was_named_once(places, tmp_path, monkeypatch, capsys):
    project, elsewhere = places
    words = ["num_workers=2", "total_steps=64", "video_frequency=1", "run_dir=run"]
    assert train(*words) == 0
    run = project / "run"
    config = read_config(run)
    assert (config["env"], config["num_workers"]) == (ENV, 2)
    assert config["env_wrappers"][1:] == [
        "gymnasium.wrappers:FlattenObservation",
        {"name": "far_away:Doubled", "factor": 10},
    ]
    assert (run / "videos" / "32.mp4").is_file(), "the process that films finds it"
    file = remembered(tmp_path)
    assert json.loads(file.read_text()) == {name: str(project) if name.startswith("far") else "" for name in NAMES}
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    monkeypatch.chdir(elsewhere)
    for verb in (["evaluate", "--episodes=2"], ["video"], ["resume", "total_steps=128"], ["verify-resume"]):
        forget()
        assert cli.main([verb[0], str(run), *verb[1:]]) == 0, capsys.readouterr().err
    assert "the same, bit by bit" in capsys.readouterr().out
    assert read_identity(run)["resumed"] == [{"steps": 64, "level": "exact"}]
    assert read_config(run)["env_wrappers"] == config["env_wrappers"]


@pytest.mark.requirement("S2.25")
def test_a_strangers_run_imports_nothing_unless_it_is_allowed(places, tmp_path, monkeypatch, capsys):
    project, _ = places
    assert train("total_steps=32", "run_dir=run") == 0
    remembered(tmp_path).unlink()
    imports = (project / "imports.txt").read_text()
    capsys.readouterr()
    for verb in ("evaluate", "video", "resume", "verify-resume", "debug"):
        forget()
        assert cli.main([verb, "run"]) == 2
        assert re.fullmatch(
            r"ludus: config.yaml: names code [^\n]+ far_away:Far-v3; [^\n]+ --allow-code [^\n]+\n",
            capsys.readouterr().err,
        )
    forget()
    with pytest.raises(ludus.LudusError, match="names code that you have not used before"):
        ludus.Trainer.resume("run")
    assert (project / "imports.txt").read_text() == imports
    forget()
    assert cli.main(["evaluate", "run", "--episodes=2", "--allow-code"]) == 0
    assert (project / "imports.txt").read_text() != imports
    assert not remembered(tmp_path).exists(), "what is allowed once is not remembered"


def test_only_exactly_the_remembered_name_is_followed(places):
    user_code.imported("far_away:Far-v3")
    forget()
    user_code.check_saved(["far_away:Far-v3"], "here")
    with pytest.raises(ludus.LudusError, match="here: names code that you have not used before, far_away:Other"):
        user_code.check_saved(["far_away:Other"], "here")


def test_a_folder_is_looked_in_last_and_only_if_it_was_the_users_own(places, monkeypatch):
    project, elsewhere = places
    (project / "json.py").write_text("raise SystemExit('stood in for a library')")
    assert user_code.load("far_away:Far.metadata")["render_fps"] == 10
    assert sys.path[-1] == str(project) and user_code.load("json:loads")("1") == 1
    (elsewhere / "far_away.py").write_text("raise SystemExit('a stranger')")
    forget()
    sys.path.remove(str(project))
    monkeypatch.chdir(elsewhere)
    user_code.check_saved(["far_away:Far.metadata"], "here")
    assert user_code.imported("far_away:Far.metadata").__file__ == str(project / "far_away.py")


def test_a_child_looks_where_its_parent_does_and_not_in_the_folder_it_runs_in(places):
    _, elsewhere = places
    (elsewhere / "tempfile.py").write_text("raise SystemExit('stood in for a library')")
    user_code.imported("far_away:Far-v3")
    code = (
        "import tempfile, far_away; from ludus.runtime import user_code; "
        "user_code.check_saved(['far_away:Far-v3'], 'here')"
    )
    child = processes.start(["-c", code], cwd=elsewhere, stderr=subprocess.PIPE, text=True)
    assert child.communicate() == (None, "") and child.returncode == 0
    done = subprocess.run([sys.executable, "-m", "ludus", "--version"], cwd=elsewhere, capture_output=True, text=True)
    assert done.stdout == f"ludus {ludus.__version__}\n"


def test_a_configuration_folder_that_is_broken_or_missing_stops_nobody(places, tmp_path, monkeypatch):
    remembered(tmp_path).parent.mkdir(parents=True)
    for text in ("{", "[1]", '{"far_away:Far-v3": 3}'):
        remembered(tmp_path).write_text(text)
        forget()
        with pytest.raises(ludus.LudusError, match="not used before"):
            user_code.check_saved(["far_away:Far-v3"], "here")
    user_code.imported("far_away:Far-v3")
    assert "far_away:Far-v3" in json.loads(remembered(tmp_path).read_text())
    forget()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    user_code.imported("far_away:Far-v3")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_code._file() == tmp_path / "home" / ".config" / "ludus" / "code.json"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such:Thing", "no_such:Thing: there is no module no_such; install it"),
        ("far_away:Nothing", "far_away:Nothing: the module far_away has no Nothing"),
        ("far-away:X", "far-away:X: 'far-away' is not the name of a module"),
        ("..os:system", "is not the name of a module"),
        ("needy:X", "needy:X: there is no module missing_piece"),
        ("broken:X", r"broken:X: cannot be imported (ZeroDivisionError: division by zero)"),
    ],
)
def test_code_that_cannot_be_had_is_one_line(places, name, message):
    Path("needy.py").write_text("import missing_piece")
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(ludus.LudusError) as caught:
        user_code.load(name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_wrappers_go_around_gymnasiums_environments_the_first_one_innermost():
    wrappers = [
        "gymnasium.wrappers:FlattenObservation",
        {"name": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 3},
    ]
    env = ludus.make_env("CartPole-v1", 2, env_wrappers=wrappers)
    assert env.id == "gym:CartPole-v1", "what JAX computes has no wrappers"
    assert [type(layer).__name__ for layer in (env.envs[0], env.envs[0].env)] == ["TimeLimit", "FlattenObservation"]
    assert list(env.env_wrappers) == wrappers


@pytest.mark.parametrize(
    ("env", "wrappers", "message"),
    [
        ("CartPole-v1", "gymnasium.wrappers:FlattenObservation", "must be a list, as in [gymnasium.wrappers:Fl"),
        ("CartPole-v1", ["FlattenObservation"], "env_wrappers: 'FlattenObservation' must be module:Name"),
        ("CartPole-v1", [{"factor": 3}], "env_wrappers: {'factor': 3} must be module:Name"),
        ("CartPole-v1", ["gymnasium.wrappers:Flatten"], "the module gymnasium.wrappers has no Flatten"),
        ("CartPole-v1", ["gymnasium.wrappers:TimeLimit"], "gymnasium.wrappers:TimeLimit cannot be put around"),
        ("CartPole-v1", ["builtins:repr"], "env_wrappers: builtins:repr must return a gymnasium.Env, got str"),
        ("jax:CartPole-v1", ["gymnasium.wrappers:FlattenObservation"], "env_wrappers: jax:CartPole-v1 takes none"),
        ("far_away:Far-v3", [], "with Gymnasium is written gym:far_away:Far-v3"),
    ],
)
def test_wrappers_that_make_no_sense_are_one_line(env, wrappers, message):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.make_env(env, env_wrappers=wrappers)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_ids_in_a_module_get_the_same_help_as_others(places):
    with pytest.raises(ludus.LudusError, match=r"env=far_away:Fare-v3: no such environment; did you mean Far-v3\?"):
        ludus.make_env("gym:far_away:Fare-v3")
    with pytest.raises(ludus.LudusError, match=r"env=Far: names no version; did you mean Far-v3\?"):
        ludus.make_env("gym:far_away:Far")
    with pytest.raises(
        ludus.LudusError, match=r"'name': Text is not supported; .*FilterObservation,filter_keys:\[place\]"
    ):
        ludus.make_env(ENV)


def test_a_name_that_was_used_in_several_folders_is_never_taken_from_the_wrong_one(places, tmp_path, monkeypatch):
    """Two projects may have a module of the same name; which one a saved run means, the current folder says."""
    project, elsewhere = places
    name, both = "far_away:Far.metadata", [project, elsewhere]
    for folder in both:
        (folder / "far_away.py").write_text(PACKAGE)
        monkeypatch.chdir(folder)
        user_code.imported(name)
        forget()
        sys.path.remove(str(folder))
    assert json.loads(remembered(tmp_path).read_text()) == {name: [str(folder) for folder in both]}
    for folder in both:
        monkeypatch.chdir(folder)
        user_code.check_saved([name], "here")
        assert user_code.imported(name).__file__ == str(folder / "far_away.py")
        forget()
        sys.path.remove(str(folder))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ludus.LudusError, match=f"{name}: you have used it from {project} and from {elsewhere}; be in"):
        user_code.check_saved([name], "here")
    (elsewhere / "far_away.py").unlink()
    user_code.check_saved([name], "here")
    assert user_code.imported(name).__file__ == str(project / "far_away.py"), "the other is gone"
