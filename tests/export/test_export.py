"""A policy that travels acts as it did at home: every format, every space, in the runtime that will run it."""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import zoo
from flax import nnx
from learned_cases import ARM, ENCODED, GROUPS, NAMED, learned, space_case
from places import SUPPORT

import ludus
from ludus.algorithms.critic import load_critic
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.policy import FINAL, save_policy
from ludus.cli import main as cli
from ludus.export import export_policy, exporting, onnx_graph, torch_files
from ludus.export.verification import played_observations, sampled_observations
from ludus.networks.actor_critic import ActionHead
from ludus.spaces import leaves

pytestmark = pytest.mark.slow

FORMATS = ["safetensors", "torch", "onnx", "stablehlo"]
OBSERVATIONS = np.random.default_rng(1).normal(size=(33, 5)).astype(np.float32)


def check_all(policy, critic, folder, seen) -> None:
    """Export in every format, proven on the same observations."""
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), seen.obs)
    for format in FORMATS:
        exported = export_policy(policy, format, folder / format, critic=critic, observations=batch)
        assert exported.difference <= 1e-5
        assert {file.parent for file in exported.files} == {folder / format}
        assert sorted(exported.files) == sorted((folder / format).iterdir())
    assert sorted(path.name for path in folder.iterdir()) == sorted(FORMATS), "the workshops are gone"


@pytest.mark.requirement("S3.34")
@pytest.mark.parametrize("name", NAMED)
def test_every_network_travels(name, tmp_path):
    policy, critic = learned(*NAMED[name])
    seen = sampled_observations(policy)
    if "image" in name:  # twin critics of 256 images take a CPU many seconds
        seen = seen._replace(obs=seen.obs[:4])
    check_all(policy, critic, tmp_path, seen)


def export_everything(folder: Path) -> None:
    policy, critic = learned(*NAMED["gru"])
    for format in FORMATS:
        export_policy(policy, format, folder / format, critic=critic, observations=OBSERVATIONS)


@pytest.mark.requirement("S3.34")
def test_the_same_policy_is_the_same_bytes_whoever_exports_it_and_when(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    export_everything(here)
    code = f"import pathlib, test_export; test_export.export_everything(pathlib.Path({str(elsewhere)!r}))"
    path = os.pathsep.join([str(SUPPORT), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    surroundings = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], env=surroundings, check=True, timeout=300)  # seconds later
    made = sorted(file.relative_to(here) for file in here.rglob("*") if file.is_file())
    assert len(made) == 12
    assert [file for file in made if (here / file).read_bytes() != (elsewhere / file).read_bytes()] == []
    program = (here / "stablehlo" / "policy.stablehlo").read_bytes()
    assert b".py" not in program, "where it was made is nobody's business"


@pytest.mark.parametrize("name", zoo.CASES)
def test_every_space_travels(name, tmp_path):
    policy, critic, env = space_case(name)
    check_all(
        policy,
        critic,
        tmp_path,
        played_observations(policy, env) if zoo.CASES[name].masks else sampled_observations(policy),
    )


def test_a_memory_travels_with_choices_and_masks(tmp_path):
    policy, critic, env = space_case("masked multi-discrete", network=ludus.GRU(memory_size=8))
    for format in FORMATS:
        exported = export_policy(policy, format, tmp_path, critic=critic, env=env)
        assert exported.difference <= 1e-5
        assert exported.compared == (
            "in every array, read again" if format == "safetensors" else "on 256 observations of object:RandomJax"
        )


# --- what a user does with the files, without ludus ---


def test_onnx_runtime_gives_the_policys_actions(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs ludus[onnx]")
    policy, _ = learned(*NAMED["sac normalised"])
    export_policy(policy, "onnx", tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    for rows in (OBSERVATIONS, OBSERVATIONS[:1]):
        (action,) = session.run(["action"], {"obs": rows})
        np.testing.assert_allclose(action, policy(rows), atol=1e-5)
    header = json.loads(session.get_modelmeta().custom_metadata_map["ludus"])
    assert header["inputs"] == [{"name": "obs", "dtype": "float32", "shape": ["batch", 5]}]


def test_stablehlo_gives_the_policys_actions(tmp_path):
    from jax import export

    policy, _ = learned(*NAMED["gru"])
    export_policy(policy, "stablehlo", tmp_path)
    exported = export.deserialize(bytearray((tmp_path / "policy.stablehlo").read_bytes()))
    assert {"cpu", "cuda", "tpu"} <= set(exported.platforms)
    header = json.loads((tmp_path / "policy.json").read_text())
    start = np.asarray(header["initial_memory"]["memory"], np.float32)
    memory, own = np.tile(start, (33, 1)), policy.initial_memory(33)
    for _ in range(3):
        outputs = exported.call({"obs": OBSERVATIONS, "memory": memory})
        memory = outputs["next_memory"]
        action, own = policy(OBSERVATIONS, own)
        np.testing.assert_allclose(outputs["action"], action, atol=1e-5)
    assert np.abs(memory - start).max() > 0.1, "it remembers"
    assert [port["name"] for port in header["outputs"]] == ["action", "next_memory"]


@pytest.mark.requirement("S3.34")
@pytest.mark.parametrize("name", ["ppo returns", "sac normalised"])
def test_torch_files_work_without_ludus(name, tmp_path):
    torch = pytest.importorskip("torch", reason="needs ludus[torch]")
    policy, critic = learned(*NAMED[name])
    export_policy(policy, "torch", tmp_path, critic=critic)
    module = load_source(tmp_path / "policy_module.py")
    parts = {}
    for part, kind in (("actor", "Actor"), ("critic", "TwinCritic" if "sac" in name else "Critic")):
        state = torch.load(tmp_path / f"final_{part}.pth", weights_only=True)
        assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
        parts[part] = getattr(module, kind)(**json.loads((tmp_path / f"final_{part}.json").read_text()))
        parts[part].load_state_dict(state)
    assert "actor.0.weight" in parts["actor"].state_dict()
    obs = torch.from_numpy(OBSERVATIONS)
    with torch.no_grad():
        action = parts["actor"](obs)
        value = parts["critic"](obs, action) if "sac" in name else parts["critic"](obs)
    np.testing.assert_allclose(action, policy(OBSERVATIONS), atol=1e-5)
    expected = critic(OBSERVATIONS, policy(OBSERVATIONS)) if "sac" in name else critic(OBSERVATIONS)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    assert {f"final_{part}.safetensors" for part in parts} <= {path.name for path in tmp_path.iterdir()}
    np.testing.assert_array_equal(
        ludus.load_policy(tmp_path / "final_actor.safetensors")(OBSERVATIONS), policy(OBSERVATIONS)
    )
    np.testing.assert_array_equal(
        load_critic(tmp_path / "final_critic.safetensors").state.parameters[0], critic.state.parameters[0]
    )


def load_source(path):
    spec = importlib.util.spec_from_file_location("exported_module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_beside_the_files_needs_torch_alone(tmp_path):
    policy, _ = learned(*NAMED["gru"])
    export_policy(policy, "torch", tmp_path)
    assert "ludus" not in {
        line.split()[1]
        for line in (tmp_path / "policy_module.py").read_text().splitlines()
        if line.startswith(("import ", "from "))
    }


# --- a user's own network ---


class Own(ludus.ActorCritic):
    """A user's own network, with attention over the observation's parts."""

    def __init__(self, spec, rngs):
        self.attention = nnx.MultiHeadAttention(2, 4, 8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.embed = nnx.Linear(1, 8, rngs=rngs)
        self.head = ActionHead(8, spec.action_space, rngs=rngs)
        self.values = nnx.Linear(8, 1, rngs=rngs)

    def _seen(self, obs):
        x = self.embed(obs[..., None])
        return nnx.softmax(self.norm(x + nnx.gelu(x, approximate=False))).mean(axis=-2)

    def actor(self, features):
        return self.head(self._seen(features))

    def critic(self, features):
        return self.values(self._seen(features))[..., 0]


@pytest.mark.parametrize("format", ["safetensors", "onnx", "stablehlo"])
def test_a_users_own_network_travels(format, tmp_path):
    policy, _ = learned(ludus.PPO(network=Own), ARM)
    assert export_policy(policy, format, tmp_path).difference <= 1e-5


def encoded(name: str):
    network = ludus.MLP((8,), encoder=ENCODED[name], share_encoder=True)
    ppo = ludus.PPO(network=network, normalize_observations=True)
    return learned(ppo, dataclasses.replace(ARM, observation_space=GROUPS))[0]


@pytest.mark.requirement("S2.26")
@pytest.mark.parametrize("format", ["safetensors", "onnx", "stablehlo"])
@pytest.mark.parametrize("name", ENCODED)
def test_an_encoder_of_groups_travels(name, format, tmp_path):
    assert export_policy(encoded(name), format, tmp_path).difference <= 1e-5


def test_an_encoder_of_groups_is_refused_by_torch_with_what_works(tmp_path):
    with pytest.raises(
        ludus.LudusError, match=r"format=torch: the network's encoder LatentQueries .*onnx, stablehlo or safetensors"
    ):
        export_policy(encoded("lq"), "torch", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_network_is_refused_by_torch_with_what_works(tmp_path):
    policy, _ = learned(ludus.PPO(network=Own), ARM)
    with pytest.raises(
        ludus.LudusError, match=r"format=torch: the network Own is not .*onnx, stablehlo or safetensors"
    ):
        export_policy(policy, "torch", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class Sorting(Own):
    """Uses a primitive that ONNX is not taught."""

    def actor(self, features):
        return self.head(jax.numpy.sort(self._seen(features)))


def test_what_cannot_be_translated_is_refused_by_name(tmp_path):
    policy, _ = learned(ludus.PPO(network=Sorting), ARM)
    with pytest.raises(ludus.LudusError, match=r"format=onnx: the network uses sort, .*use format=stablehlo"):
        export_policy(policy, "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- a file that answers otherwise is not handed over ---


def wrong_onnx(monkeypatch):
    monkeypatch.setitem(onnx_graph.SAME, "tanh", "Sin")


def wrong_torch(monkeypatch):
    linear = torch_files._linear
    monkeypatch.setattr(torch_files, "_linear", lambda layer: (linear(layer)[0], 1.001 * linear(layer)[1]))


def wrong_stablehlo(monkeypatch):
    from ludus.export import stablehlo

    read = stablehlo.read
    monkeypatch.setattr(
        stablehlo, "read", lambda path: lambda inputs: read(path)(inputs | {"obs": inputs["obs"] + 1e-3})
    )


@pytest.mark.parametrize("spoil", [wrong_torch, wrong_onnx, wrong_stablehlo])
def test_what_differs_is_not_handed_over(spoil, tmp_path, monkeypatch):
    policy, _ = learned(*NAMED["ppo continuous"])
    format = spoil.__name__.removeprefix("wrong_")
    spoil(monkeypatch)
    with pytest.raises(
        ludus.LudusError, match=r"export: actions differ by \d\.\d\de[-+]\d+ on 256 observations .* 1e-05"
    ):
        export_policy(policy, format, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["policy", "critic"])
def test_a_file_that_holds_something_else_is_not_handed_over(part, tmp_path, monkeypatch):
    policy, critic = learned(*NAMED["ppo continuous"])
    load = getattr(exporting, f"load_{part}")

    def forgetful(*arguments):
        loaded = load(*arguments)
        statistics = loaded.state.observations._replace(mean=np.zeros(3, np.float32))
        object.__setattr__(loaded.state, "observations", statistics)
        return loaded

    monkeypatch.setattr(exporting, f"load_{part}", forgetful)
    with pytest.raises(ludus.LudusError, match=r"export: final_.*\.safetensors does not hold what was to be written"):
        export_policy(policy, "safetensors", tmp_path / "out", critic=critic)
    assert list(tmp_path.iterdir()) == []


def test_a_critic_that_differs_is_not_handed_over(tmp_path, monkeypatch):
    policy, critic = learned(*NAMED["ppo returns"])
    read = torch_files.read_critic
    monkeypatch.setattr(torch_files, "read_critic", lambda path: lambda x: {"value": 1.01 * read(path)(x)["value"]})
    with pytest.raises(ludus.LudusError, match="export: values differ by"):
        export_policy(policy, "torch", tmp_path / "out", critic=critic)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["discrete", "box of float64, multi-discrete actions", "multi-discrete of two axes, binary actions"]
)
def test_other_choices_are_noticed_though_the_logits_agree(name, tmp_path, monkeypatch):
    policy, _, _ = space_case(name)
    read = onnx_graph.read

    def other(path):
        def act(inputs):
            outputs = read(path)(inputs)
            (_, leaf), *_ = leaves(policy.spec.action_space)
            flipped = outputs["action"].copy().reshape(len(outputs["action"]), -1)
            start = np.ravel(np.broadcast_to(getattr(leaf, "start", 0), leaf.shape or (1,)))
            flipped[0, 0] = start[0] + (flipped[0, 0] - start[0] + 1) % 2
            return outputs | {"action": flipped.reshape(outputs["action"].shape)}

        return act

    monkeypatch.setattr(onnx_graph, "read", other)
    with pytest.raises(ludus.LudusError, match="export: actions differ"):
        export_policy(policy, "onnx", tmp_path / "out")


def test_a_tie_may_be_decided_either_way(tmp_path, monkeypatch):
    policy, _, _ = space_case("discrete")
    names = policy.state.network.names
    blank = [
        0 * x if name.startswith("actor_head") else x for name, x in zip(names, policy.state.parameters, strict=True)
    ]
    object.__setattr__(policy.state, "parameters", tuple(blank))
    read = onnx_graph.read
    monkeypatch.setattr(
        onnx_graph, "read", lambda path: lambda x: read(path)(x) | {"action": read(path)(x)["action"] + np.int32(1)}
    )
    assert export_policy(policy, "onnx", tmp_path).difference == 0.0


def test_a_file_for_one_size_of_batch_is_noticed(tmp_path, monkeypatch):
    policy, _ = learned(*NAMED["ppo continuous"])
    read = onnx_graph.read
    monkeypatch.setattr(onnx_graph, "read", lambda path: lambda x: read(path)({"obs": np.resize(x["obs"], (256, 3))}))
    with pytest.raises(ludus.LudusError, match="export: actions differ by inf"):
        export_policy(policy, "onnx", tmp_path / "out")


# --- arguments ---


def test_observations_of_ones_own(tmp_path):
    policy, _ = learned(*NAMED["gru"])
    assert "33 observations given" in str(export_policy(policy, "stablehlo", tmp_path, observations=OBSERVATIONS))
    with pytest.raises(ludus.LudusError, match="observations: must be a batch"):
        export_policy(policy, "stablehlo", tmp_path, observations=OBSERVATIONS[0])


def test_an_unknown_format_is_answered_with_those_there_are(tmp_path):
    policy, _ = learned(*NAMED["sac"])
    with pytest.raises(ludus.LudusError, match="format='pickle': must be one of safetensors, torch, onnx, stablehlo"):
        export_policy(policy, "pickle", tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    policy, _ = learned(*NAMED["sac"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ludus.LudusError, match="file/out: cannot be written"):
        export_policy(policy, "safetensors", tmp_path / "file" / "out")


@pytest.mark.parametrize(("format", "library", "extra"), [
    ("torch", "torch", r"needs PyTorch \(pip install 'ludus\[torch\]'\)"),
    ("onnx", "onnx", r"needs onnx \(pip install 'ludus\[onnx\]'\)"),
    ("onnx", "onnxruntime", r"needs onnxruntime \(pip install 'ludus\[onnx\]'\)"),
    ("stablehlo", "flatbuffers", r"needs FlatBuffers"),
])  # fmt: skip
def test_a_missing_library_is_one_line_that_names_the_extra(format, library, extra, tmp_path, monkeypatch):
    policy, _ = learned(*NAMED["sac"])
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ludus.LudusError, match=f"^format={format}: {extra}"):
        export_policy(policy, format, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", zoo.CASES)
def test_drawn_observations_are_of_the_space(name):
    policy, _, _ = space_case(name)
    space = policy.spec.observation_space
    obs = sampled_observations(policy).obs
    for (_, leaf), x in zip(leaves(space), jax.tree.leaves(obs), strict=True):
        assert (x.shape, x.dtype) == ((32, 8, *leaf.shape), leaf.dtype)
        assert zoo._contains(leaf, x[0, 0]) and zoo._contains(leaf, x[-1, -1])


# --- the command line ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = ["train", "env=Pendulum-v1", "algorithm=ppo", "total_steps=256", "eval_frequency=0", "verbose=false"]
    assert cli.main([*words, "algorithm.batch_size=64", "algorithm.minibatch_size=64", f"run_dir={folder}"]) == 0
    return folder


@pytest.mark.requirement("S3.34")
def test_ludus_export(trained, tmp_path, capsys):
    for format in FORMATS:
        assert cli.main(["export", str(trained), "--format", format]) == 0
        compared = "in every array" if format == "safetensors" else "on 256 observations of jax:Pendulum-v1"
        assert f" {compared}" in capsys.readouterr().out.splitlines()[-1]
    written = {path.name for path in (trained / "exports" / "final_actor").iterdir()}
    assert {"final_actor.safetensors", "final_actor.pth", "policy.onnx", "policy.stablehlo", "policy.json"} <= written


@pytest.mark.requirement("S2.22")
def test_ludus_export_takes_any_policy_of_the_run(trained, tmp_path, capsys):
    for policy, name in (("pi_ckpt1.safetensors", "pi_ckpt1"), ("best", "best_return_pi_ckpt")):
        shutil.copy(trained / FINAL, trained / "policies" / f"{name}.safetensors")
        words = ["export", str(trained), "--format", "safetensors", "--policy", policy]
        assert cli.main([*words, "--output", str(tmp_path / name)]) == 0
        assert [path.name for path in (tmp_path / name).iterdir()] == [f"{name}.safetensors"]
    assert cli.main(["export", str(trained), "--format", "onnx", "--policy", "pi_ckpt9.safetensors"]) == 2
    assert "pi_ckpt9.safetensors: no such policy file" in capsys.readouterr().err


def test_ludus_export_without_the_environment(trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("env: jax:Pendulum-v1", "env: object:Mine"))
    assert cli.main(["export", str(run), "--format", "stablehlo"]) == 0
    out, err = capsys.readouterr()
    assert "256 observations drawn from their space" in out
    assert err.startswith("ludus: compared on observations drawn from their space, since") and "object:Mine" in err


def test_ludus_export_says_what_is_missing(trained, capsys, monkeypatch):
    assert cli.main(["export", str(trained)]) == 2
    assert "--format" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli.main(["export", str(trained), "--format", "onnx"]) == 2
    assert capsys.readouterr().err == "ludus: format=onnx: needs onnx (pip install 'ludus[onnx]')\n"


@pytest.mark.requirement("S3.34")
def test_the_critic_goes_along_if_the_run_has_one(trained, tmp_path, capsys):
    ends = ("json", "pth", "safetensors")
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for parts in (("actor", "critic"), ("actor",)):
        out = tmp_path / str(len(parts))
        assert cli.main(["export", str(run), "--format", "torch", "--output", str(out)]) == 0
        expected = {"policy_module.py", *(f"final_{part}.{end}" for part in parts for end in ends)}
        assert {path.name for path in out.iterdir()} == expected
        (run / "policies" / "final_critic.safetensors").unlink(missing_ok=True)


def test_the_policy_is_not_changed_by_exporting(tmp_path):
    policy, _ = learned(*NAMED["sac"])
    before = policy(OBSERVATIONS)
    save_policy(policy, tmp_path / "before.safetensors")
    export_policy(policy, "onnx", tmp_path)
    np.testing.assert_array_equal(policy(OBSERVATIONS), before)
    assert as_arrays(policy.algorithm).gamma == policy.algorithm.gamma
