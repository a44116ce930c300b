"""Who may import whom, which names are public, and what `import ludus` needs."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import ludus

SOURCE = Path(ludus.__file__).parent
ROOMS = ("envs", "rollout", "learning", "networks", "tracking")
PURE = ("learning.returns", "learning.losses", "learning.normalize")

# What each room may know of ours, besides the shared words.
SHARED = {"types", "spaces", "rows", "seeding", "summing"}
ALLOWED = {
    "types": set(),
    "spaces": set(),
    "rows": set(),
    "seeding": set(),
    "summing": set(),
    "cohorts": set(SHARED),
    "counting": {"types"},
    "interrupt": set(),
    "output": set(),
    "compilation": {"types"},
    "autotuning": {"files", "types"},
    "own_code": {"files", "types"},
    "withheld": {"types"},
    "guard": set(),
    "processes": {"guard", "own_code"},
    "config_files": {"files", "types"},
    "envs": {"envs", "output", "own_code", "processes", "withheld", *SHARED},
    "recording": {"envs", *SHARED},
    "rollout": {"rollout", "envs", "compilation", *SHARED},
    "networks": {"networks", *SHARED},
    "learning": {"learning", "networks", "replay", *SHARED},
    "replay": {"types"},
    "files": {"types"},
    "tracking": {"tracking", "files", "output", "processes", "withheld", *SHARED},
    "track": {"publish", "report", "tracking", "files", "types"},
    "publish": {"export", "keeping", "policy", "promotion", "tracking", "types"},
    "promotion": {"evaluation", "policy", "run_config"},
    "checkpoint": {"files", "retention", "types"},
    "snapshot": {"checkpoint", "envs", "replay", "types"},
    "keeping": {"checkpoint", "files", "policy", "snapshot", "types"},
    "settings": {"convergence", "keeping", "tracking", "types"},
    "run_config": {"counting", "envs", "learning", "own_code", "settings", "tracking", "trainer", "types"},
    "progress": {"compilation", "convergence", "keeping", "run_config", "tracking", "trainer"},
    "loop": {
        "cohorts",
        "compilation",
        "counting",
        "evaluation",
        "iteration",
        "learning",
        "rollout",
        "settings",
        *SHARED,
    },
    "judging": {
        "callback",
        "compilation",
        "convergence",
        "counting",
        "evaluation",
        "interrupt",
        "keeping",
        "policy",
        "settings",
        "tracking",
        "types",
    },
    "retreat": {"envs", "iteration"},
    "learned": {"files", "learning", "networks", *SHARED},
    "policy": {"learned", *SHARED},
    "critic": {"learned", *SHARED},
    "export": {"export", "critic", "policy", "learned", "learning", "networks", "rollout", "compilation", "files"}
    | SHARED,
    "report": {"report", "tracking", "files", "types"},
    "watch": {"watch", "report", "tracking", "types"},
    "evaluation": {"policy", "rollout", *SHARED},
    "film_process": {"policy", "critic", "processes", "types"},
    "playing": {"policy", "critic", "evaluation", "rollout", "envs", "report", *SHARED},
}
FOREIGN = {
    "tensorboard": set(),
    "tensorboardX": set(),
    "gymnasium": {"envs.gymnasium"},
    "envpool": {"envs.envpool"},
    "hydra": {"config"},
    "omegaconf": {"config", "config_files"},
    "safetensors": {"learned", "checkpoint", "report.episode"},
    "torch": {"export.torch_files", "export.policy_module"},
    "onnx": {"export.onnx_graph"},
    "onnxruntime": {"export.onnx_graph"},
    "flatbuffers": {"export.stablehlo"},
    "av": {"report.video"},
    "PIL": {"report.images", "report.ink", "report.scenes", "report.video"},
    "mlflow": {"tracking.mlflow.store", "export.mlflow_model", "export.mlflow_policy"},
}


@functools.cache
def modules() -> dict[str, ast.Module]:
    files = [path for path in SOURCE.rglob("*.py") if "conf" not in path.parts]
    names = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in files}
    return {names[path].removesuffix(".__init__"): ast.parse(path.read_text()) for path in files}


def imports(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def ours(tree: ast.Module) -> set[str]:
    names = {name.split(".")[1] for name in imports(tree) if name.startswith("ludus.")}
    return names - {"__version__"}


@pytest.mark.parametrize("name", [name for name in modules() if name.split(".")[0] in ALLOWED])
def test_each_room_knows_only_what_it_may(name):
    assert ours(modules()[name]) <= ALLOWED[name.split(".")[0]]


def test_nothing_below_imports_the_command_line():
    for name, tree in modules().items():
        if name.split(".")[0] not in ("cli", "config", "__main__", "compat"):
            assert not ours(tree) & {"cli", "config", "compat"}, name


@pytest.mark.parametrize("name", PURE)
def test_the_mathematics_is_pure(name):
    assert ours(modules()[name]) == set()


def test_foreign_libraries_are_imported_in_their_own_file_alone():
    for name, tree in modules().items():
        for imported in imports(tree):
            library = imported.split(".")[0]
            if library in FOREIGN and name not in FOREIGN[library]:
                pytest.fail(f"{name} imports {library}")


def test_exactly_one_place_asks_which_kind_an_environment_is():
    asking = [
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "isinstance"
        and any(isinstance(part, ast.Name) and part.id in ("VectorEnv", "HostEnv") for part in ast.walk(node))
    ]
    assert asking == ["rollout"]


def test_nothing_that_is_loaded_can_execute_code():
    forbidden = {"pickle", "cloudpickle", "joblib", "dill", "marshal", "shelve"}
    for name, tree in modules().items():
        assert not {imported.split(".")[0] for imported in imports(tree)} & forbidden, name
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "yaml.load", "os.system"), f"{name}: {called}"
                assert not any(k.arg in ("shell", "allow_pickle") for k in node.keywords), name


def test_objects_are_sent_to_our_own_worker_processes_and_nowhere_else():
    for name, tree in modules().items():
        if name not in ("envs.workers", "envs.worker_process"):
            assert not any("multiprocessing" in imported for imported in imports(tree)), name


def test_worker_processes_do_not_import_jax():
    code = "import sys, ludus.envs.worker_process, ludus.envs.gymnasium; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_global_random_state():
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np.random":
                assert node.attr in ("SeedSequence", "default_rng", "Generator"), f"{name}: np.random.{node.attr}"


def test_public_names():
    assert sorted(ludus.__all__) == [
        "ActorCritic", "Agent", "CheckpointOptions", "ConvergenceOptions", "Environment", "Evaluation", "GRU",
        "LudusError", "MLP", "Masked", "PPO", "Policy", "SAC", "Settings", "Step", "TrackingOptions", "Trainer",
        "evaluate", "load_policy", "make_env", "register_env",
    ]  # fmt: skip
    assert all(getattr(ludus, name) is not None for name in ludus.__all__)
    assert set(ludus.__all__) <= set(dir(ludus))
    with pytest.raises(AttributeError):
        ludus.nonsense  # noqa: B018


WITHOUT = """
import sys
for name in (
    "gymnasium", "envpool", "hydra", "omegaconf", "mlflow", "safetensors", "plotly", "torch", "onnx", "tensorboardX",
    "av", "PIL"
):
    sys.modules[name] = None
import ludus
for name in ludus.__all__:
    getattr(ludus, name)
env = ludus.make_env("CartPole-v1", num_envs=4)
ppo = ludus.PPO(batch_size=64, minibatch_size=64)
print(ludus.Trainer(ppo, env, ludus.Settings(verbose=False, eval_frequency=0)).train(total_steps=64).steps)
"""


def test_ludus_trains_without_the_libraries_it_only_offers():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "64", done.stderr


def test_importing_ludus_is_light():
    code = "import sys, ludus; print(sorted({'jax', 'flax', 'gymnasium', 'hydra'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
