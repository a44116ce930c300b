"""A user's own algorithm and network: trained, saved, resumed and evaluated, by name or passed again."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from own_algorithms import LoudPPO, Plain, Reinforce, Shared, Wide
from places import SUPPORT

import ludus
from ludus.algorithms.registry import ALGORITHMS, describe
from ludus.cli.main import main
from ludus.runs.folder import read_config
from ludus.runs.journal import read_journal
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of

pytestmark = pytest.mark.slow

LOUD = LoudPPO(batch_size=64, minibatch_size=32, epochs_per_update=1, anneal_learning_rate=False)
QUIET = {"verbose": False, "eval_frequency": 0, "eval_episodes_final": 4, "record_behaviour": False}


def trainer(algorithm, folder, env="CartPole-v1", **settings):
    workers = {"num_workers": 0} if env.startswith("gym:") else {}
    made = ludus.make_env(env, num_envs=4, **workers)
    return ludus.Trainer(algorithm, made, ludus.Settings(seed=2, **{**QUIET, **settings}), run_dir=folder)


def rows(run):
    return [row for row in read_journal(run) if row["kind"] == "train"]


@pytest.mark.requirement("S0.24", "S2.24")
@pytest.mark.parametrize("env", ["CartPole-v1", "gym:CartPole-v1"])
@pytest.mark.parametrize("algorithm", [Reinforce(), LOUD, Plain()])
def test_an_own_algorithm_trains_on_both_kinds_of_environment_and_resumes_bit_by_bit(tmp_path, env, algorithm):
    often = {"checkpoint": ludus.CheckpointOptions(every_iterations=2)}
    result = trainer(algorithm, tmp_path / "whole", env, **often).train(total_steps=768)
    assert result.evaluation is not None and result.steps == 768
    trainer(algorithm, tmp_path / "parts", env, **often).train(total_steps=384)
    resumed = ludus.Trainer.resume(tmp_path / "parts", verbose=False, total_steps=768)
    resumed.train()
    assert differences(state_of(tmp_path / "whole"), state_of(tmp_path / "parts")) == []
    named = [row.get("my_figure", row.get("loudness")) for row in rows(tmp_path / "whole")]
    assert len(named) == len(rows(tmp_path / "parts")) and None not in named


def test_a_policy_of_an_own_algorithm_is_loaded_by_its_name(tmp_path):
    made = trainer(Reinforce(learning_rate=0.1), tmp_path / "run")
    made.train(total_steps=256)
    policy = ludus.load_policy(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy(obs), made.policy(obs))
    assert read_config(tmp_path / "run")["algorithm"] == {
        "name": "own_algorithms:Reinforce", "learning_rate": 0.1, "steps": 32, "explodes_at": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize("network", [Wide(6), Shared])
def test_a_policy_of_an_own_network_is_loaded_by_its_name(tmp_path, network):
    ppo = ludus.PPO(network=network, batch_size=64, minibatch_size=32, epochs_per_update=1)
    made = trainer(ppo, tmp_path / "run")
    made.train(total_steps=128)
    obs = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    np.testing.assert_array_equal(ludus.load_policy(tmp_path / "run")(obs), made.policy(obs))
    resumed = ludus.Trainer.resume(tmp_path / "run", verbose=False, total_steps=256)
    assert resumed.train().steps == 256


def test_what_lies_in_a_function_must_be_passed_again(tmp_path):
    @dataclass(frozen=True)
    class Local(Reinforce):
        """Nobody can import it."""

    trainer(Local(), tmp_path / "run").train(total_steps=128)
    assert read_config(tmp_path / "run")["algorithm"]["name"] == "custom"
    with pytest.raises(ludus.LudusError, match="algorithm is your own code: pass it again"):
        ludus.Trainer.resume(tmp_path / "run")
    resumed = ludus.Trainer.resume(tmp_path / "run", algorithm=Local(), verbose=False, total_steps=256)
    assert resumed.train().steps == 256
    assert ludus.load_policy(tmp_path / "run", algorithm=Local())([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_a_nan_of_an_own_algorithm_is_found_and_the_state_from_before_is_kept(tmp_path):
    made = trainer(Reinforce(explodes_at=0.5), tmp_path / "run")
    with pytest.raises(ludus.LudusError, match=r"parameter is not finite \(NaN or Inf\) in iteration 5"):
        made.train(total_steps=1024)
    assert np.isfinite(np.asarray(made.state.learner["weights"])).all() and int(made.state.learner["updates"]) == 4


def test_an_own_algorithm_serves_in_an_own_loop():
    agent = ludus.Agent(
        Reinforce(steps=8), ludus.make_env("CartPole-v1").observation_space, ludus.make_env("CartPole-v1").action_space
    )
    obs = np.zeros(4, np.float32)
    for _ in range(8):
        agent.select_action(obs)
        agent.observe(obs + 0.1, 1.0, False, False)
    assert agent.update()["my_figure"] >= 0.0
    with pytest.raises(ludus.LudusError, match="algorithm=Reinforce: has no critic"):
        _ = agent.critic


class Half:
    """Has some of the functions."""

    def update(self, state, rollout, key):
        """Learn nothing."""

    def init(self, key, spec):
        """Begin."""


@dataclass(frozen=True)
class Unfinished(ludus.Algorithm):
    """Inherits what must be written."""

    def init(self, key, spec):
        return ()


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Reinforce, "algorithm=Reinforce: must be an algorithm such as ludus.PPO()"),
        (object(), "algorithm=object: must be an algorithm such as ludus.PPO()"),
        ("ppo", "must be an algorithm such as ludus.PPO()"),
        (Half(), "algorithm=Half: has no values_actions; inherit from ludus.Algorithm"),
        (Unfinished(), "algorithm=Unfinished: has no policy; inherit from ludus.Algorithm"),
    ],
)
def test_what_is_no_algorithm_is_named_in_one_line(algorithm, message):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.Trainer(algorithm, ludus.make_env("CartPole-v1"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_registered_algorithm_has_its_name(tmp_path):
    try:
        ludus.register_algorithm("reinforce", Reinforce)
        ludus.register_algorithm("reinforce", Reinforce)
        assert describe(Reinforce())["name"] == "reinforce"
        words = ["env=CartPole-v1", "num_envs=4", "algorithm=reinforce", "algorithm.steps=16", "total_steps=128",
                 "verbose=false", "record_behaviour=false"]  # fmt: skip
        assert main(["train", *words, f"run_dir={tmp_path / 'run'}"]) == 0
        with pytest.raises(ludus.LudusError, match="'reinforce' stands for Reinforce already"):
            ludus.register_algorithm("reinforce", LoudPPO)
        with pytest.raises(ludus.LudusError, match="must be a name without a colon"):
            ludus.register_algorithm("my:own", LoudPPO)
    finally:
        del ALGORITHMS["reinforce"]
    with pytest.raises(ludus.LudusError, match="algorithm=reinforce: must be one of ppo, sac, bc, bc_sac, or your own"):
        ludus.Trainer.resume(tmp_path / "run")


MODULE = """
from own_algorithms import *
"""


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with a module in it, and a way to run the command line there as a process of its own."""
    (tmp_path / "mine.py").write_text(SUPPORT.joinpath("own_algorithms.py").read_text())
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def call(*words, config="config"):
        environment["XDG_CONFIG_HOME"] = str(tmp_path / config)
        command = [sys.executable, "-P", "-m", "ludus", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return call, tmp_path


SMALL = [
    "env=CartPole-v1",
    "num_envs=4",
    "total_steps=256",
    "verbose=false",
    "eval_episodes_final=2",
    "eval_frequency=0",
]


@pytest.mark.requirement("S4.28")
def test_own_names_on_the_command_line_through_every_verb(elsewhere):
    call, folder = elsewhere
    words = [*SMALL, "algorithm=mine:LoudPPO", "algorithm.loudness=5", "network=mine:Wide", "network.width=6"]
    words += ["algorithm.batch_size=64", "algorithm.minibatch_size=32", "run_dir=run"]
    code, _, said = call("train", *words)
    assert code == 0, said
    assert read_config(folder / "run")["algorithm"]["network"] == {"name": "mine:Wide", "width": 6}
    assert [row["loudness"] for row in rows(folder / "run")] == [5.0] * 4
    code, out, said = call("evaluate", "run", "--episodes", "2", "--json")
    assert code == 0 and json.loads(out)["episodes"] == 2, said
    verbs = [
        ["resume", "run", "total_steps=320", "verbose=false"], ["report", "run", "--no-images"],
        ["export", "run", "--format", "safetensors"], ["verify-resume", "run", "--iterations", "1"],
    ]  # fmt: skip
    for verb in verbs:
        code, _, said = call(*verb)
        assert code == 0, (verb, said)
    # A stranger's machine has never heard of the module.
    code, _, said = call("evaluate", "run", config="stranger")
    assert code == 2 and "names code that you have not used before, mine:LoudPPO" in said and "--allow-code" in said
    assert call("evaluate", "run", "--episodes", "2", "--allow-code", config="stranger")[0] == 0
    code, _, said = call("resume", "run", "total_steps=384", config="stranger")
    assert code == 2 and "--allow-code" in said


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algorithm=mine:Nobody", "mine:Nobody: the module mine has no Nobody"),
        ("algorithm=nowhere:Thing", "nowhere:Thing: there is no module nowhere"),
        ("algorithm=mine:Reinforce algorithm.unknown=1", "algorithm.unknown: no such key"),
        (
            "algorithm=mine:Reinforce network=gru",
            "algorithm/network=gru: algorithm=mine:Reinforce has no network to choose",
        ),
        ("network=mine:Nobody", "mine:Nobody: the module mine has no Nobody"),
        (
            "algorithm=reinforce",
            "algorithm=reinforce: must be one of ppo, sac, bc, bc_sac, or your own as in my_module:Name",
        ),
        ("algorithm=json:dumps", "algorithm=json:dumps: must be a class"),
        ("algorithm=json:JSONEncoder algorithm.gamma=0.9", "algorithm=JSONEncoder: must be an algorithm such as"),
    ],
)
def test_what_is_wrong_with_an_own_name_is_one_line(run, tmp_path, monkeypatch, word, message):
    (tmp_path / "mine.py").write_text(SUPPORT.joinpath("own_algorithms.py").read_text())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        code, _, said = run("train", *SMALL, *word.split())
    finally:
        sys.modules.pop("mine", None)
    assert code == 2 and message in said and said.count("\n") == 1, said


@pytest.mark.parametrize("format", ["safetensors", "stablehlo"])
def test_a_policy_of_an_own_algorithm_is_exported(tmp_path, capsys, format):
    """Though it neither has a network nor says which distribution it chooses from."""
    run = tmp_path / "run"
    trainer(Reinforce(learning_rate="linear:0.1:0"), run).train(total_steps=128)
    assert main(["export", str(run), "--format", format]) == 0
    assert "the same to" in capsys.readouterr().out
    assert main(["export", str(run), "--format", "torch"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ludus: ")]
    assert "--format=torch: Reinforce is your own code, and cannot be written so" in line
