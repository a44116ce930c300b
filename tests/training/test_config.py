"""The configuration: layers, choices, sweeps, presets, and that the dataclasses are its only source."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

import ludus
from ludus.algorithms import registry
from ludus.algorithms.hyperparameters import traced
from ludus.networks.encoders import ENCODERS, LateFusion, LatentQuery, TokenMLP
from ludus.runtime.demonstrations import from_arrays
from ludus.training import config, config_words
from ludus.types import LudusError, Spec

PLAIN = "env=CliffWalking-v1"  # has no preset of its own

# The PPO table of the second mission document, less batch_size, whose default differs (2048, not 64).
DOCUMENTED = {
    "learning_rate": 3e-4,
    "clip_epsilon": 0.2,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "epochs_per_update": 10,
    "minibatch_size": 64,
}

# One value for each key that is not its default.
CHANGED = {
    "learning_rate": 1e-3,
    "gamma": 0.5,
    "gae_lambda": 1.0,
    "clip_epsilon": 0.1,
    "entropy_coef": 0.0,
    "value_coef": 1.0,
    "max_grad_norm": 5.0,
    "value_clip_epsilon": 0.2,
    "value_loss_scale": 1.0,
    "target_kl": 0.01,
    "critic_learning_rate": 1e-4,
    "advantages": "monte_carlo",
    "branches": 4,
    "branch_depth": 6,
    "kl_coef": 0.5,
    "kl_target": 0.02,
    "kl_reference": "start",
    "batch_size": 4096,
    "minibatch_size": 128,
    "epochs_per_update": 3,
    "segment_length": 16,
    "accumulation_steps": 2,
    "anneal_learning_rate": False,
    "normalize_observations": True,
    "normalize_rewards": True,
    "normalize_returns": False,
}
NEEDED = {"value_clip_epsilon": ["algorithm.normalize_returns=true"]}


def algorithm_of(*overrides: str) -> Any:
    return registry.build(config.compose([PLAIN, "preset=null", *overrides]).algorithm)


@pytest.mark.requirement("S1.14")
def test_without_overrides_the_algorithm_is_what_python_gives():
    assert algorithm_of() == ludus.PPO()
    assert algorithm_of("algorithm/network=gru").network == ludus.GRU()


@pytest.mark.requirement("S1.14")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_defaults(name):
    assert config.compose([PLAIN, "preset=null"]).algorithm[name] == DOCUMENTED[name]


@pytest.mark.requirement("S1.14")
@pytest.mark.requirement("S4.11")
@pytest.mark.parametrize("name", CHANGED)
def test_every_hyperparameter_can_be_set(name):
    changed = algorithm_of(f"algorithm.{name}={str(CHANGED[name]).lower()}", *NEEDED.get(name, []))
    assert getattr(changed, name) == CHANGED[name] != getattr(ludus.PPO(), name)
    assert type(getattr(changed, name)) is type(CHANGED[name])


def test_no_hyperparameter_is_left_out():
    settable = {f.name for f in dataclasses.fields(ludus.PPO) if f.metadata.get("configurable", True)} - {"network"}
    assert settable == set(CHANGED)


@pytest.mark.requirement("S2.2")
def test_the_run_environment_and_output_can_be_set():
    words = "seed=3 num_envs=4 total_steps=1e6 max_episodes=7 max_seconds=2.5 collect=episodes eval_frequency=0"
    words += " eval_episodes=5 run_dir=/tmp/x verbose=false env_options.gravity=12 env_options.wind={x:1}"
    made = config.compose(["env=gym:CartPole-v1", "preset=null", *words.split()])
    expected = config.TrainConfig(
        env="gym:CartPole-v1",
        env_options={"gravity": 12, "wind": {"x": 1}},
        num_envs=4,
        preset=None,
        seed=3,
        total_steps=1_000_000,
        max_episodes=7,
        max_seconds=2.5,
        collect="episodes",
        eval_frequency=0,
        eval_episodes=5,
        run_dir="/tmp/x",
        verbose=False,
        algorithm=made.algorithm,
    )
    assert made == expected
    assert type(made.total_steps) is int


@pytest.mark.requirement("S4.28")
@pytest.mark.requirement("S2.2")
def test_networks_are_chosen_and_shaped_by_configuration():
    mlp = algorithm_of("algorithm.network.hidden_sizes=[64,128,256]", "algorithm.network.activation=relu")
    assert mlp.network == ludus.MLP((64, 128, 256), "relu")
    gru = algorithm_of("algorithm/network=gru", "algorithm.network.memory_size=8")
    assert gru.network == ludus.GRU(memory_size=8)
    apart = algorithm_of("algorithm.network.critic_hidden_sizes=[256,64]")
    assert apart.network == ludus.MLP(critic_hidden_sizes=(256, 64))
    assert registry.build(registry.describe(apart)) == apart
    assert algorithm_of("algorithm.network.critic_hidden_sizes=null").network == ludus.MLP()
    with pytest.raises(LudusError, match="critic_hidden_sizes=64: must be of type list of int or null"):
        algorithm_of("algorithm.network.critic_hidden_sizes=64")


TOY_NETWORK = ludus.MLP((8,), "relu")


@dataclasses.dataclass(frozen=True)
class Toy:
    speed: float = traced(2.0, "how fast", 0.0)
    network: Any = dataclasses.field(default=TOY_NETWORK, metadata={"meaning": "the network"})


@pytest.mark.requirement("S4.28")
def test_an_algorithm_needs_no_more_than_its_registration(monkeypatch):
    monkeypatch.setitem(registry.ALGORITHMS, "toy", Toy)
    assert algorithm_of("algorithm=toy") == Toy()
    assert algorithm_of("algorithm=toy", "algorithm.speed=3", "algorithm/network=gru") == Toy(3.0, ludus.GRU())
    with pytest.raises(LudusError, match=r"algorithm\.gamma: no such key"):
        config.compose([PLAIN, "algorithm=toy", "algorithm.gamma=0.9"])
    assert "algorithm.speed" in config.help_text()


@pytest.mark.requirement("S2.1")
def test_layers_are_defaults_then_preset_then_the_user():
    assert config.compose(["env=CartPole-v1", "preset=null"]).algorithm["epochs_per_update"] == 10
    tuned = config.compose(["env=CartPole-v1"])
    assert tuned.preset == "CartPole-v1/ppo"
    assert (tuned.algorithm["epochs_per_update"], tuned.algorithm["gamma"]) == (8, 0.99)
    mine = config.compose(["env=CartPole-v1", "algorithm.epochs_per_update=5"])
    assert (mine.algorithm["epochs_per_update"], mine.algorithm["batch_size"]) == (5, 1024)


def test_presets_are_found_whatever_the_prefix_and_can_be_named():
    assert config.compose(["env=gym:Pendulum-v1"]).preset == "Pendulum-v1/ppo"
    assert config.compose([PLAIN]).preset == "default/ppo"
    assert config.compose([PLAIN, "algorithm=sac"]).preset == "default/sac"
    borrowed = config.compose([PLAIN, "preset=Pendulum-v1/ppo"])
    assert (borrowed.preset, borrowed.algorithm["gamma"]) == ("Pendulum-v1/ppo", 0.9)


@pytest.mark.parametrize("name", config.presets())
def test_every_preset_is_valid_and_says_something(name, tmp_path):
    env, _, algorithm = name.rpartition("/")
    if env == "default":
        env = "MountainCarContinuous-v0"
    words = [f"env={env}", f"algorithm={algorithm}"]
    if algorithm in ("bc", "bc_sac"):
        made = ludus.make_env(env)
        shown = from_arrays(made.observation_space, made.action_space, np.zeros((1, 2)), np.zeros((1, 1)))
        ludus.write_demonstrations(shown, tmp_path / "demos.safetensors")
        words.append(f"algorithm.demonstrations={tmp_path}/demos.safetensors")
    made = config.compose([*words, f"preset={name}"])
    assert made.preset == name
    assert made != config.compose([*words, "preset=null"])
    parts = config.build(made)
    parts.algorithm.validate(Spec(parts.env.observation_space, parts.env.action_space, parts.env.num_envs))
    parts.env.close()


@pytest.mark.requirement("S4.2")
@pytest.mark.requirement("S4.10")
def test_naming_an_environment_is_enough():
    promised = {
        "CartPole-v1": ["ppo"],
        "Acrobot-v1": ["ppo"],
        "MountainCar-v0": ["ppo"],
        "MountainCarContinuous-v0": ["ppo"],
        "Pendulum-v1": ["ppo", "sac"],
        "LunarLander-v3": ["ppo"],
        "LunarLanderContinuous-v3": ["ppo"],
        "BipedalWalker-v3": ["ppo", "sac"],
        "HalfCheetah-v5": ["sac"],
        "Hopper-v5": ["sac"],
    }
    for env, algorithms in promised.items():
        made = config.compose([f"env={env}"])
        assert made.preset == f"{env}/{algorithms[0]}"
        assert made.algorithm["name"] == algorithms[0]
        assert {f"{env}/{algorithm}" for algorithm in algorithms} <= set(config.presets())


def test_another_budget_replaces_the_default_one():
    assert config.compose([PLAIN]).total_steps == config.compose([PLAIN, "max_seconds=null"]).total_steps == 1_000_000
    for budget in ("max_episodes=10", "max_seconds=1"):
        assert config.compose(["env=CartPole-v1", budget]).total_steps is None
        assert config.compose([PLAIN, budget, "total_steps=5"]).total_steps == 5


def test_build_gives_what_the_trainer_takes():
    parts = config.build(config.compose(["env=CartPole-v1", "env_options.gravity=12", "num_envs=4", "seed=5"]))
    assert parts.env == ludus.make_env("CartPole-v1", 4, gravity=12)
    preset = {"batch_size": 1024, "minibatch_size": 128, "epochs_per_update": 8, "normalize_returns": False}
    assert parts.algorithm == ludus.PPO(learning_rate=3e-3, **preset)
    ludus.Trainer(parts.algorithm, parts.env, parts.settings)
    assert parts.settings.seed == 5
    assert set(parts.budget) == {"total_steps", "max_episodes", "max_seconds"}


def test_sweeps_are_every_combination_and_nothing_twice():
    runs = config_words.combinations(["env=A", "seed=1,2,1", "x=[1,2],[3]", "y=range(0,2)"])
    assert len(runs) == 2 * 2 * 2
    assert runs["seed=2,x=[3],y=1"] == ["env=A", "seed=2", "x=[3]", "y=1"]
    assert config_words.combinations(["env=A", "seed=1"]) == {"": ["env=A", "seed=1"]}


def test_interpolations_are_resolved():
    assert config.compose([PLAIN, "seed=4", "run_dir=out/${env}-${seed}"]).run_dir == "out/CliffWalking-v1-4"


@pytest.mark.requirement("S2.1")
@pytest.mark.requirement("S2.26")
@pytest.mark.parametrize(
    ("words", "network"),
    [
        (["encoder=lq"], ludus.MLP(encoder=LatentQuery())),
        (["network/encoder=lq", "network.encoder.depth=2"], ludus.MLP(encoder=LatentQuery(depth=2))),
        (["network=gru", "algorithm/network/encoder=mlp", "encoder.hidden_sizes=[8]", "network.share_encoder=true"],
         ludus.GRU(encoder=TokenMLP((8,)), share_encoder=True)),
        (["algorithm=sac", "encoder=wayformer", "algorithm.network.encoder.tied=false"],
         ludus.MLP((256, 256), "relu", encoder=LateFusion(tied=False))),
        (["encoder=none"], ludus.MLP()),
    ],
)  # fmt: skip
def test_an_encoder_is_a_group_of_every_network(words, network):
    config_ = config.compose(["env=NearestTarget-v1", *words])
    algorithm = config.build(config_).algorithm
    assert algorithm.network == network
    assert registry.build(registry.describe(algorithm)) == algorithm, "so it is saved, and read again"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["encoder=lqq"], "algorithm/network/encoder=lqq: must be one of none, mlp, lq, wayformer"),
        (["encoder=lq", "encoder.dept=1"], "algorithm.network.encoder.dept: no such key; did you mean"),
        (["encoder.depth=1"], "algorithm.network.encoder.depth: no such key"),
        (["encoder=lq", "encoder.num_heads=5"], "encoder.num_heads=5: must divide algorithm.network.encoder.model_dim"),
    ],
)
def test_a_wrong_encoder_is_one_line(words, told):
    with pytest.raises(ludus.LudusError, match=re.escape(told)):
        config.build(config.compose(["env=NearestTarget-v1", *words]))


def test_help_gives_every_key_a_type_a_default_and_a_meaning():
    lines = {line.split()[0]: line.split() for line in config.help_text().splitlines() if line.startswith("  ")}
    assert lines["env"][1:3] == ["str", "required"]
    assert lines["algorithm.gamma"][1:] == ["float", "0.99", "discount", "factor"]
    assert lines["algorithm.tau"][1:3] == ["float", "0.005"]
    assert lines["algorithm.accumulation_steps"][1:3] == ["int", "1"]
    names = {f.name for f in dataclasses.fields(config.TrainConfig)} - config.PARTS.keys() - {"sources"}
    names |= {f"{part}.{f.name}" for part, kind in config.PARTS.items() for f in dataclasses.fields(kind)}
    for algorithm in (ludus.PPO, ludus.SAC, ludus.BC, ludus.BCSAC):
        names |= {f"algorithm.{f.name}" for f in dataclasses.fields(algorithm)} - {
            "algorithm.network",
            "algorithm.optimizer",
        }
    builders = (ludus.MLP, ludus.GRU, ludus.Transformer)
    networks = {f"algorithm.network.{f.name}" for builder in builders for f in dataclasses.fields(builder)}
    networks -= {"algorithm.network.encoder"}
    encoders = {f"algorithm.network.encoder.{f.name}" for kind in ENCODERS.values() for f in dataclasses.fields(kind)}
    rewards = {f"algorithm.reward.{f.name}" for kind in registry.REWARDS.values() for f in dataclasses.fields(kind)}
    rewards -= {"algorithm.reward.network"}
    chosen = set(config.CHOICES) - {"algorithm"}
    assert lines.keys() == names | networks | encoders | rewards | chosen
    assert all(len(words) > 4 for words in lines.values())


@pytest.mark.requirement("S0.20")
def test_a_reward_is_a_group_of_every_algorithm():
    words = "reward=preferences reward.labels=50 reward.network=gru reward.network.memory_size=8 reward.alarm=3"
    made = config.build(config.compose(["env=Pendulum-v1", *words.split()])).algorithm
    expected = ludus.PreferenceReward(labels=50, network=ludus.GRU(memory_size=8), alarm=3.0)
    assert isinstance(made, ludus.LearnedReward) and made.reward == expected
    assert made.algorithm == config.build(config.compose(["env=Pendulum-v1"])).algorithm
    assert registry.build(registry.describe(made)) == made, "so it is saved, and read again"
    assert config.build(config.compose(["env=Pendulum-v1", "reward=null"])).algorithm == made.algorithm


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["reward=praise"], "algorithm/reward=praise: must be one of preferences, demonstrations, regression"),
        (["reward.labels=5"], "algorithm.reward.labels: needs a learned reward; give reward=preferences or"),
        (["reward=regression", "reward.lables=5"], "algorithm.reward.lables: no such key; did you mean"),
        (["reward=preferences", "reward.members=0"], "reward.members=0: must be at least 1"),
    ],
)
def test_a_wrong_reward_is_one_line(words, told):
    with pytest.raises(ludus.LudusError, match=re.escape(told)):
        config.build(config.compose(["env=Pendulum-v1", *words]))
