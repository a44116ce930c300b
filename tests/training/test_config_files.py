"""Users' own configuration files: laid between presets and words, chosen by name like ours, and named in the run."""

import json
import re
from pathlib import Path

import pytest
import yaml

import ludus
from ludus.cli import main as cli
from ludus.runs.folder import read_config
from ludus.runtime import user_code
from ludus.training import config
from ludus.training.config_files import OwnFiles

FILES = {
    "my.yaml": """
        env: Pendulum-v1
        total_steps: 1e5
        num_envs: 4
        env_options: {g: 9.0}
        checkpoint: {keep_last: 7}
        algorithm:
          learning_rate: 1e-3
          network: gru
        """,
    "later.yaml": "{num_envs: 2, algorithm.gamma: 0.9}",
    "conf/algorithm/network/big.yaml": "{name: mlp, hidden_sizes: [256, 256]}",
    "conf/algorithm/network/huge.yaml": "{name: big, activation: relu, hidden_sizes: [512]}",
    "conf/algorithm/network/encoder/deep.yaml": "{name: lq, depth: 8}",
    "conf/algorithm/network/seeing.yaml": "{name: gru, memory_size: 8, encoder: {name: deep, num_latents: 2}}",
    "conf/algorithm/careful.yaml": "{name: sac, tau: 0.001, network: big}",
    "conf/preset/quick.yaml": "# all keys\n{total_steps: 64, algorithm: {gamma: 0.5, network: {hidden_sizes: [3]}}}",
    "conf/preset/Pendulum-v1/ppo.yaml": "num_envs: 3",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def compose(*words: str, files: tuple[str, ...] = (), folder: str | None = "conf") -> config.TrainConfig:
    return config.compose(words, OwnFiles([Path(file) for file in files], folder and Path(folder)))


@pytest.mark.requirement("S2.1")
def test_an_encoder_is_chosen_from_a_file_and_by_one():
    deep = compose("env=CartPole-v1", "encoder=deep", "encoder.depth=7").algorithm["network"]["encoder"]
    assert (deep["name"], deep["depth"], deep["num_latents"]) == ("lq", 7, 16)
    seeing = compose("env=CartPole-v1", "network=seeing").algorithm["network"]
    assert (seeing["name"], seeing["memory_size"]) == ("gru", 8)
    assert (seeing["encoder"]["name"], seeing["encoder"]["depth"], seeing["encoder"]["num_latents"]) == ("lq", 8, 2)


@pytest.mark.requirement("S2.1")
def test_a_file_lies_over_the_preset_and_under_the_words():
    made = compose("num_envs=8", files=("my.yaml",), folder=None)
    plain = config.compose(["env=Pendulum-v1"])
    assert (made.env, made.total_steps, made.num_envs, made.env_options) == ("Pendulum-v1", 100_000, 8, {"g": 9.0})
    assert made.checkpoint.keep_last == 7 and made.preset == "Pendulum-v1/ppo"
    assert made.algorithm["learning_rate"] == 1e-3 and made.algorithm["network"]["name"] == "gru"
    assert made.algorithm["gae_lambda"] == plain.algorithm["gae_lambda"], "what the file leaves open is the preset's"
    assert made.sources == ["my.yaml"]
    both = compose(files=("my.yaml", "later.yaml"), folder=None)
    assert (both.num_envs, both.algorithm["gamma"], both.total_steps) == (2, 0.9, 100_000)


@pytest.mark.requirement("S2.1")
def test_groups_of_a_folder_are_chosen_by_name_like_ours():
    big = compose("env=CartPole-v1", "algorithm/network=big")
    assert big.algorithm["network"] == {**ludus_mlp(), "hidden_sizes": [256, 256]}
    assert big.sources == ["conf/algorithm/network/big.yaml"]
    huge = compose("env=CartPole-v1", "algorithm/network=huge", "algorithm.network.activation=elu")
    assert huge.algorithm["network"] == {**ludus_mlp(), "hidden_sizes": [512], "activation": "elu"}
    careful = compose("env=Pendulum-v1", "algorithm=careful", "preset=null").algorithm
    assert (careful["name"], careful["tau"], careful["network"]["hidden_sizes"]) == ("sac", 0.001, [256, 256])
    assert config.build(compose("env=CartPole-v1", "algorithm/network=big")).algorithm.network == ludus.MLP((256, 256))


def test_a_file_called_like_one_of_ours_takes_its_place_where_it_is_chosen():
    Path("conf/algorithm/network/mlp.yaml").write_text("{name: mlp, hidden_sizes: [9]}")
    assert compose("env=CartPole-v1", "algorithm/network=mlp").algorithm["network"]["hidden_sizes"] == [9]
    assert compose("env=CartPole-v1").algorithm["network"] == ludus_mlp()


def ludus_mlp() -> dict:
    return config.compose(["env=CartPole-v1"]).algorithm["network"]


@pytest.mark.requirement("S2.1")
def test_presets_of_a_folder_are_chosen_by_name_and_by_environment():
    quick = compose("env=CartPole-v1", "preset=quick")
    assert (quick.total_steps, quick.algorithm["gamma"], quick.preset) == (64, 0.5, "quick")
    assert quick.num_envs == config.TrainConfig().num_envs, "one preset at a time"
    assert quick.algorithm["network"]["hidden_sizes"] == [3]
    chosen = compose("env=CartPole-v1", "preset=quick", "algorithm/network=big")
    assert chosen.algorithm["network"]["hidden_sizes"] == [256, 256], "what was chosen lies over the preset"
    fitting = compose("env=Pendulum-v1")
    assert (fitting.num_envs, fitting.preset) == (3, "Pendulum-v1/ppo")
    assert fitting.algorithm["gamma"] == ludus.PPO().gamma, "a preset of the folder stands in for ours of its name"


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        (
            {"a.yaml": "algorithm: {gama: 0.9}"},
            [],
            "a.yaml: algorithm.gama=0.9: no such key; did you mean algorithm.gamma",
        ),
        ({"a.yaml": "num_envs: many"}, [], "a.yaml: num_envs=many: must be of type int"),
        ({"a.yaml": "algorithm: dqn"}, [], "algorithm=dqn: must be one of ppo, sac"),
        ({"a.yaml": "- 1"}, [], "a.yaml: must hold keys and values"),
        ({"a.yaml": "a: [1"}, [], "a.yaml: is not readable YAML"),
        ({"a.yaml": "a: !!python/object/apply:os.system [exit]"}, [], "a.yaml: is not readable YAML"),
        ({"a.yaml": "a: &x [1]\nb: *x"}, [], "a.yaml: is not readable YAML (it has aliases"),
        ({"missing.yaml": None}, [], "missing.yaml: cannot be read (No such file or directory)"),
        (
            {"a.yaml": "env_wrappers: [no_such_module:Wrapper]"},
            [],
            "a.yaml: names code that you have not used before, no_",
        ),
        ({"a.yaml": "env: gym:no_such_module:Env-v0"}, [], "a.yaml: names code that you have not used before, no_such"),
        (
            {},
            ["algorithm/network=bigg"],
            "one of mlp, gru, transformer, big, huge, seeing, or your own as in my_module:Name; did you mean big?",
        ),
        ({}, ["preset=quic"], "did you mean quick?"),
    ],
)
def test_mistakes_in_files_are_one_line_that_names_the_file(files, words, message, capsys):
    for name, text in files.items():
        if text is not None:
            Path(name).write_text(text)
    words = [*words, *(f"--config={name}" for name in files)]
    words += [] if "env: " in str(files) else ["env=CartPole-v1"]
    assert cli.main(["train", "--config-dir", "conf", *words]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"ludus: [^\n]+\n", err) and message in err


def test_a_folder_that_is_none_is_one_line(capsys):
    assert cli.main(["train", "env=CartPole-v1", "--config-dir=nowhere"]) == 2
    assert capsys.readouterr().err == "ludus: --config-dir=nowhere: is not a folder\n"


def test_code_that_was_typed_or_used_before_may_stand_in_a_file(monkeypatch):
    monkeypatch.setattr(user_code, "_followed", {})
    Path("a.yaml").write_text("env: gym:CartPole-v1\nenv_wrappers: [gymnasium.wrappers:TimeAwareObservation]")
    with pytest.raises(ludus.LudusError, match=r"not used before, gymnasium\.wrappers:TimeAware"):
        compose(files=("a.yaml",))
    words = "env_wrappers=[gymnasium.wrappers:TimeAwareObservation]"
    config.build(compose(words, "num_workers=0", files=("a.yaml",)))
    user_code._followed.clear()
    assert compose(files=("a.yaml",)).env_wrappers == ["gymnasium.wrappers:TimeAwareObservation"]


@pytest.mark.slow
@pytest.mark.requirement("S2.1")
def test_a_run_keeps_what_came_of_its_files_and_names_them(capsys):
    words = ["--config", "later.yaml", "--config-dir", "conf", "env=CartPole-v1", "preset=quick", "seed=3"]
    short = ["algorithm.batch_size=64", "algorithm.minibatch_size=64", "eval_frequency=0"]
    assert cli.main(["train", *words, *short, "run_dir=run"]) == 0
    assert "preset quick · later.yaml · conf/preset/quick.yaml" in capsys.readouterr().err
    kept = read_config("run")
    assert (kept["total_steps"], kept["num_envs"], kept["algorithm"]["gamma"], kept["seed"]) == (64, 2, 0.9, 3)
    assert json.loads(Path("run/run.json").read_text())["configured_by"] == ["later.yaml", "conf/preset/quick.yaml"]
    again = compose("run_dir=again", files=("run/config.yaml",), folder=None)
    parts = config.build(again)
    assert parts.algorithm == config.build(compose(*words[4:], *short, files=("later.yaml",))).algorithm
    assert yaml.safe_load(Path("run/config.yaml").read_text())["num_envs"] == parts.env.num_envs == 2
