"""The user's own environment on the command line: `env=my_module:MyEnv`; every other spelling is one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ludus
from ludus.cli import main as cli
from ludus.envs.batch import JaxEnv
from ludus.envs.names import spelling
from ludus.envs.registry import _registered
from ludus.runs.folder import read_config, read_identity
from ludus.runtime import user_code

pytestmark = pytest.mark.slow

IN_PYTHON = """
import pathlib
import gymnasium, numpy as np
import ludus

with pathlib.Path(__file__).with_name("imports.txt").open("a") as file:
    file.write("imported ")


class Walk(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=4, fault=""):
        if fault:
            raise RuntimeError(fault)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, float(self.np_random.uniform(-1, 1))
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.t, self.x = self.t + 1, self.x + (0.1 if action else -0.1)
        return np.array([self.x], np.float32), self.x, self.t == self.length, False, {}


def make(length=4):
    return Walk(length)


walk, nothing = Walk(5), 3
ludus.register_env("Named", Walk)
"""
IN_JAX = """
from dataclasses import dataclass
from typing import ClassVar
import jax, jax.numpy as jnp
import ludus
from ludus.spaces import Box, Discrete


@dataclass(frozen=True)
class Line(ludus.Environment):
    length: int = 4
    observation_space: ClassVar = Box(-9.0, 9.0, (1,))
    action_space: ClassVar = Discrete(2)

    def reset(self, key):
        state = jnp.array([jax.random.uniform(key), 0.0])
        return state, state[:1]

    def step(self, state, action, key):
        state = state + jnp.array([0.2 * action - 0.1, 1.0])
        return state, ludus.Step(state[:1], state[0], state[1] >= self.length, jnp.array(False))


def make(length=4):
    return Line(length)


line = Line(5)
"""
TINY = ["algorithm.batch_size=32", "algorithm.minibatch_size=32", "algorithm.epochs_per_update=1", "num_envs=2"]


def forget() -> None:
    """Make this process one that has imported nothing of the user's."""
    for name in ("my_module", "package", "package.module"):
        sys.modules.pop(name, None)
    _registered.pop("Named", None)
    user_code._followed.clear()
    user_code._is_all_allowed = False


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user with a configuration folder of their own is in the folder of their project."""
    path, folder = list(sys.path), tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "my_module.py").write_text(IN_PYTHON)
    (folder / "package" / "module.py").write_text(IN_JAX)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(folder)
    forget()
    yield folder
    forget()
    sys.path[:] = path


@pytest.mark.requirement("S2.25")
@pytest.mark.parametrize("name", ["my_module:Walk", "my_module:make", "my_module:walk", "my_module:Named"])
def test_a_class_a_function_an_instance_and_a_registered_name_of_gymnasiums_kind(name, project):
    options = {} if name.endswith(":walk") else {"length": 5}
    env = ludus.make_env(name, 2, **options)
    assert env.id == name and env.envs[0].length == 5, "options reach the constructor"
    assert name in json.loads((project.parent / "settings" / "ludus" / "code.json").read_text())
    env.reset([0, 1])
    assert [bool(env.step(np.array([0, 1])).terminated.all()) for _ in range(6)] == [False] * 4 + [True, False]


@pytest.mark.requirement("S2.25")
@pytest.mark.parametrize("name", ["package.module:Line", "package.module:make", "package.module:line"])
def test_a_class_a_function_and_an_instance_of_jaxs_kind(name, project):
    options = {} if name.endswith(":line") else {"length": 5}
    env = ludus.make_env(name, 2, **options)
    assert isinstance(env, JaxEnv) and env.id == name and env.env.length == 5


def test_a_time_limit_goes_around_what_takes_none(project):
    env = ludus.make_env("my_module:Walk", 1, max_episode_steps=2)
    env.reset([0])
    assert [env.step(np.array([0])).truncated.tolist() for _ in range(2)] == [[False], [True]]
    assert env.max_episode_steps == 2
    with pytest.raises(ludus.LudusError, match=r"^env_options.max_episode_steps=0: must be an integer of at least 1$"):
        ludus.make_env("my_module:Walk", 1, max_episode_steps=0)
    assert ludus.make_env("package.module:Line", 1, max_episode_steps=2).max_episode_steps == 2


RIGHT = {
    "my_module.Walk": "my_module:Walk",
    "my_module/Walk": "my_module:Walk",
    "my_module::Walk": "my_module:Walk",
    "my_module.py:Walk": "my_module:Walk",
    "./my_module.py:Walk": "my_module:Walk",
    "package/module.py:Line": "package.module:Line",
    "package.module.Line": "package.module:Line",
    "package:module:Line": "package:module.Line",
    "/some/where/my_module.py:Walk": "my_module:Walk; be in the folder /some/where",
    "../my_module.py:Walk": "my_module:Walk; be in the folder ..",
    "my_module.py": "my_module:MyEnv",
    "my_module:": "my_module:MyEnv",
    "Walk": "my_module:Walk",
    "gym:my_module:Walk": "my_module:Walk, without gym:",
    "gym:my_module.Walk": "my_module:Walk",
    "jax:my_module:Walk": "my_module:Walk",
    "envpool:my_module:Walk": "my_module:Walk",
    "object:Walk": "my_module:Walk",
}


@pytest.mark.parametrize("wrong", RIGHT)
def test_every_other_spelling_is_one_line_with_the_right_one(wrong, project, capsys):
    assert cli.main(["train", f"env={wrong}", "total_steps=32", *TINY]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(rf"ludus: env={re.escape(wrong.removeprefix('gym:'))}: [^\n]+\n", said.replace("=gym:", "="))
    assert f"written {RIGHT[wrong]}" in said
    assert not (project / "runs").exists()


@pytest.mark.parametrize("library", ["brax", "playground", "gymnax", "jumanji"])
def test_a_library_that_is_to_come_is_no_module_of_the_users(library, project):
    (project / f"{library}.py").write_text("raise SystemExit('stood in for a library')")
    with pytest.raises(ludus.LudusError, match=f"^env={library}:ant: no library '{library}' yet; prefixes are jax:, "):
        ludus.make_env(f"{library}:ant")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("my_module:Wolk", {}, "env=my_module:Wolk: the module my_module has no Wolk"),
        ("my_modul:Walk", {}, "env=my_modul:Walk: there is no module my_modul; install it, or be in the folder that"),
        ("my_module:Walk-v0", {}, "with Gymnasium is written gym:my_module:Walk-v0"),
        ("gymn:CartPole-v1", {}, "there is no module gymn; install it, or be in the folder that holds it; an id that a "
         "module registers with Gymnasium is written gym:gymn:CartPole-v1; did you mean gym:CartPole-v1?"),
        ("my_module:nothing", {}, "env=my_module:nothing: must be an id, a gymnasium.Env, its class, or a ludus Env"),
        ("builtins:dict", {}, "env=builtins:dict: must be or return a gymnasium.Env or a ludus.Environment, got dict"),
        ("my_module:Walk", {"height": 3}, "env_options={'height': 3}: my_module:Walk does not take them (TypeError: "),
        ("package.module:Line", {"height": 3}, "env_options={'height': 3}: package.module:Line does not take them"),
        ("my_module:walk", {"height": 3}, "env_options.height: an environment that is made already takes max_ep"),
        ("my_module:Walk", {"fault": "no map"}, "env=my_module:Walk: raised RuntimeError: no map when it was made"),
        ("package.module:Line", {"env_wrappers": ["my_module:Walk"]}, "env_wrappers: package.module:Line takes none"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_own_code_is_one_line(name, options, message, project):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.make_env(name, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert hasattr(caught.value, "__notes__") == ("fault" in options), "the traceback of own code that raises"


def ludus_in(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """Run the command in a folder, as a process of its own."""
    command = [sys.executable, "-P", "-m", "ludus", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(ludus.__file__).parents[1])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.requirement("S2.25")
def test_a_class_of_ones_own_trains_in_workers_and_every_verb_finds_it_again_from_elsewhere(project, capsys):
    """Among files that are called like libraries, none of which is read."""
    for library in ("queue", "json", "gymnasium", "jax", "numpy"):
        (project / f"{library}.py").write_text("raise SystemExit('stood in for a library')")
    words = ["env=my_module:Walk", "env_options.length=6", "num_workers=2", "total_steps=64", "video_frequency=1"]
    trained = ludus_in(project, "train", *words, "checkpoint.every_iterations=1", "run_dir=run", *TINY)
    assert trained.returncode == 0, trained.stderr
    run, elsewhere = project / "run", project.parent / "elsewhere"
    assert (read_config(run)["env"], read_config(run)["num_workers"]) == ("my_module:Walk", 2)
    assert (run / "videos" / "32.mp4").is_file(), "the process that films finds it"
    evaluated = ludus_in(elsewhere, "evaluate", str(run), "--episodes=3", "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["mean_length"] == 6
    resumed = ludus_in(elsewhere, "resume", str(run), "total_steps=96")
    assert resumed.returncode == 0, resumed.stderr
    assert read_identity(run)["resumed"] == [{"steps": 64, "level": "exact"}]
    shadowed = ludus_in(project, "train", "env=json:Walk")
    assert re.fullmatch(
        r"ludus: env=json:Walk: the module json has no Walk; Python finds another json before yours, .*\n",
        shadowed.stderr,
    )


@pytest.mark.requirement("S2.25")
def test_the_other_verbs_find_it_too_and_a_report_imports_nothing(project, capsys, monkeypatch):
    assert cli.main(["train", "env=my_module:make", "total_steps=64", "run_dir=run", "verbose=false", *TINY]) == 0
    run = project / "run"
    monkeypatch.chdir(project.parent / "elsewhere")
    for verb in (["verify-resume", "--iterations=1"], ["debug", "--iterations=1"], ["video"], ["export"]):
        forget()
        more = ["--format=safetensors"] if verb[0] == "export" else []
        assert cli.main([verb[0], str(run), *verb[1:], *more]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert "the same, bit by bit" in said.out and "compared on observations drawn" not in said.err
    imports = (project / "imports.txt").read_text()
    forget()
    assert cli.main(["report", str(run)]) == 0
    assert (project / "imports.txt").read_text() == imports


def test_evaluate_plays_elsewhere_what_is_typed_there(project, capsys):
    assert cli.main(["train", "env=my_module:Walk", "total_steps=32", "run_dir=run", "verbose=false", *TINY]) == 0
    assert cli.main(["evaluate", "run", "--episodes=2", "--env=my_module:make", "--json"]) == 0
    assert cli.main(["evaluate", "run", "--episodes=2", "--env=my_module.py:make"]) == 2
    assert "your own class or function is written my_module:make" in capsys.readouterr().err


@pytest.mark.requirement("S2.25")
def test_a_strangers_run_that_names_ones_class_imports_nothing(project, tmp_path, capsys):
    assert cli.main(["train", "env=my_module:Walk", "total_steps=32", "run_dir=run", "verbose=false", *TINY]) == 0
    (tmp_path / "settings" / "ludus" / "code.json").unlink()
    imports = (project / "imports.txt").read_text()
    capsys.readouterr()
    for verb in ("evaluate", "video", "resume", "verify-resume", "debug"):
        forget()
        assert cli.main([verb, "run"]) == 2
        said = capsys.readouterr().err
        assert re.fullmatch(
            r"ludus: [^\n]+ that you have not used before, my_module:Walk; [^\n]+ --allow-code .*\n", said
        )
    assert (project / "imports.txt").read_text() == imports
    forget()
    assert cli.main(["evaluate", "run", "--episodes=2", "--allow-code"]) == 0


def test_a_configuration_file_may_not_name_what_was_not_typed(project, capsys):
    (project / "mine.yaml").write_text("env: my_module:Walk\n")
    assert cli.main(["train", "--config", "mine.yaml", *TINY]) == 2
    assert "mine.yaml: names code that you have not used before, my_module:Walk" in capsys.readouterr().err
    assert not (project / "imports.txt").exists()


def test_spellings_of_nothing_are_answered_too():
    assert [spelling(text) for text in ("", ":", ".py", "/", ":MyEnv")] == ["my_module:MyEnv"] * 5
