"""The house: which rooms there are, who may import whom, which names are public, and what `import ludus` needs."""

import ast
import functools
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ludus

SOURCE = Path(ludus.__file__).parent
ROOMS = ("runtime", "envs", "networks", "algorithms", "rollout", "export", "runs", "report", "training")
"""In the order of the data's way: each may import what stands before it."""
DOORS = ("cli", "compat")
"""Nothing imports these."""
WORDS = ("types", "spaces")
"""Shared by all: they import nothing of ours."""
APART = {"envs": {"algorithms"}, "rollout": {"algorithms"}, "algorithms": {"envs", "rollout"}}
"""These meet in `types` and in the protocols alone."""
BLIND = {"runs": {"envs", "networks", "algorithms", "rollout"}, "report": {"envs", "networks", "algorithms", "rollout"}}
"""These know files and names, not algorithms."""
PURE = ("algorithms.advantages", "algorithms.losses", "algorithms.normalize")
"""Mathematics: arrays in, arrays out."""
FOREIGN = {
    "tensorboard": set(),
    "tensorboardX": set(),
    "gymnasium": {"envs.adapters.gymnasium", "envs.adapters.gymnasium_factory", "envs.adapters.gymnasium_spaces"},
    "envpool": {"envs.adapters.envpool"},
    "hydra": {"training.config", "training.config_words"},
    "omegaconf": {"training.config", "training.config_files", "training.config_keys"},
    "safetensors": {
        "algorithms.policy_file",
        "envs.scenarios.shards",
        "runtime.demonstration_file",
        "runs.checkpoint.format",
        "runs.episode_file",
    },
    "torch": {"export.torch_files", "export.policy_module"},
    "onnx": {"export.onnx_graph"},
    "onnxruntime": {"export.onnx_graph"},
    "flatbuffers": {"export.stablehlo"},
    "orjson": {"runs.journal"},
    "av": {"report.video.encode"},
    "PIL": {
        "report.html.images",
        "report.video.clip",
        "report.video.draw",
        "report.video.scenes",
        "report.video.road_scene",
        "report.video.encode",
    },
    "starlette": {"report.live.app", "report.live.auth"},
    "uvicorn": {"report.live.connection", "report.live.server"},
    "minari": {"envs.adapters.minari"},
    "waymax": set(),
    "fsspec": {"runs.storage.fsspec_store"},
    "botocore": {"runs.storage.fsspec_store"},
    "s3fs": set(),
    "gcsfs": set(),
    "google": {"runs.storage.google_drive"},
    "google_auth_httplib2": {"runs.storage.google_drive"},
    "googleapiclient": {"runs.storage.google_drive"},
    "httplib2": {"runs.storage.google_drive"},
    "mlflow": {"runs.trackers.mlflow.store", "export.mlflow_model", "export.mlflow_policy"},
}
"""Each foreign library has its own file, so that it can be absent, or exchanged."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    names = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in names.items()}


def imports(tree: ast.Module) -> list[str]:
    """Every import, wherever it stands: lazy ones and those for types alone, too."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def ours(tree: ast.Module) -> set[str]:
    """The names directly under the package that a module imports."""
    return {name.split(".")[1] for name in imports(tree) if name.startswith("ludus.")} - {"__version__"}


def in_rooms() -> list[str]:
    return [name for name in modules() if name.split(".")[0] in (*ROOMS, *DOORS, *WORDS)]


def test_the_tree_is_the_designs():
    found = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert found == {*ROOMS, *DOORS, *(f"{word}.py" for word in WORDS), "__init__.py", "__main__.py"}


@pytest.mark.parametrize("name", in_rooms())
def test_a_room_imports_only_rooms_that_stand_before_it(name):
    room = name.split(".")[0]
    if room in WORDS:
        allowed = set()
    elif room in ROOMS:
        allowed = {*WORDS, *ROOMS[: ROOMS.index(room) + 1]}
    else:
        allowed = {*WORDS, *ROOMS, room}
    assert ours(modules()[name]) <= allowed - APART.get(room, set()) - BLIND.get(room, set())


def test_no_module_imports_itself_in_a_circle():
    """Within a room too: what is imported when a module is run must come before it."""
    known = modules()
    graph = {
        name: {target for imported in _at_once(tree) if (target := _module_of(imported, known)) and target != name}
        for name, tree in known.items()
        if name != "__init__"
    }
    TopologicalSorter(graph).prepare()


def _at_once(tree: ast.Module) -> list[str]:
    """Imports that run with the module: neither lazy nor for types alone."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += imports(ast.Module([node], []))
    return found


def _module_of(imported: str, known: dict[str, ast.Module]) -> str | None:
    parts = imported.removeprefix("ludus.").split(".") if imported.startswith("ludus.") else []
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in known), None)


@pytest.mark.parametrize("name", PURE)
def test_the_mathematics_is_pure(name):
    assert ours(modules()[name]) <= {"types"}


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
        and any(isinstance(part, ast.Name) and part.id in ("JaxEnv", "HostEnv") for part in ast.walk(node))
    ]
    assert asking == ["rollout.runner"]


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
        if name not in ("envs.workers.messages", "envs.workers.pool", "envs.workers.worker"):
            assert not any("multiprocessing" in imported for imported in imports(tree)), name


def test_worker_processes_do_not_import_jax():
    code = "import sys, ludus.envs.workers.worker, ludus.envs.adapters.gymnasium; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_global_random_state():
    """But in one file, which looks after environments that draw from it."""
    for name, tree in modules().items():
        if name == "envs.host.shared_generators":
            continue
        assert "random" not in imports(tree), f"{name}: random"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np.random":
                assert node.attr in ("SeedSequence", "default_rng", "Generator"), f"{name}: np.random.{node.attr}"


def test_public_names():
    assert sorted(ludus.__all__) == [
        "ActorCritic", "Agent", "Algorithm", "BC", "BCSAC", "Callback", "CheckpointOptions", "ConvergenceOptions",
        "DemonstrationReward", "Demonstrations", "Environment", "Evaluation", "GRU", "LearnedReward", "LudusError",
        "MLP", "Masked", "PPO", "Policy", "PreferenceReward", "RegressionReward", "RewardModel", "SAC", "Settings",
        "Step", "StorageOptions", "TrackingOptions", "Trainer", "Transformer", "Update", "evaluate", "load_policy",
        "load_reward_model", "make_env", "read_demonstrations", "record_demonstrations", "register_algorithm",
        "register_env", "register_tracker", "write_demonstrations",
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


@pytest.mark.slow
def test_ludus_trains_without_the_libraries_it_only_offers():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "64", done.stderr


def test_importing_ludus_is_light():
    code = "import sys, ludus; print(sorted({'jax', 'flax', 'gymnasium', 'hydra'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


LONG = {
    "algorithms.ppo": "the paper's algorithm is read in one file",
    "algorithms.sac": "the paper's algorithm is read in one file",
}
"""Files of more than `MOST_LINES` lines, and why."""
MOST_LINES = 350
MOST_UNTYPED = 0.05


def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function, with the name of its module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(name, node) for name, tree in modules().items() for node in ast.walk(tree) if isinstance(node, kinds)]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """What a function is given by name or place, besides its own object."""
    given = function.args
    return [x for x in (*given.posonlyargs, *given.args, *given.kwonlyargs) if x.arg not in ("self", "cls")]


def is_untyped(parameter: ast.arg) -> bool:
    """Whether a signature does not say what is to be given; `Any` within a type says more than nothing."""
    return parameter.annotation is None or ast.unparse(parameter.annotation) == "Any"


def takes_trainer(parameter: ast.arg) -> bool:
    annotation = "" if parameter.annotation is None else ast.unparse(parameter.annotation)
    return re.search(r"\bTrainer\b", annotation) is not None or parameter.arg == "trainer"


def test_signatures_say_what_they_take():
    given = [(name, parameter) for name, function in functions() for parameter in parameters(function)]
    assert len(given) > 2000
    untyped = [f"{name}: {parameter.arg}" for name, parameter in given if is_untyped(parameter)]
    assert len(untyped) <= MOST_UNTYPED * len(given), untyped


def test_environments_and_algorithms_are_given_by_their_protocols():
    """Where both are brought together; a rollout's functions are for one kind of environment each."""
    for name, function in functions():
        if name.split(".")[0] in ("training", "export", "compat", "cli"):
            bare = [x.arg for x in parameters(function) if x.arg in ("env", "algorithm", "learner") and is_untyped(x)]
            assert not bare, f"{name}.{function.name}: {bare}"


def test_no_function_takes_a_whole_trainer():
    """But those that make one, in the class that they are told."""
    taking = {name for name, function in functions() if any(map(takes_trainer, parameters(function)))}
    assert taking == {"training.resume"}


def test_files_are_short():
    lines = {name: (SOURCE / f"{name.replace('.', '/')}.py") for name in modules()}
    long = {name for name, file in lines.items() if file.is_file() and file.read_text().count("\n") > MOST_LINES}
    assert long <= set(LONG), sorted(long - set(LONG))


def test_a_class_has_a_name_of_its_own():
    """But in the file that leaves the house beside an exported policy."""
    places: dict[str, list[str]] = {}
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and name != "export.policy_module":
                places.setdefault(node.name, []).append(name)
    assert {kind: where for kind, where in places.items() if len(where) > 1} == {}


RIDDLES = re.compile(r"(What|How|Who|Where|Which|Why|Nothing|Nobody)\b")
"""A docstring that begins so asks, or tells what is not, instead of saying what a thing is."""


def test_docstrings_say_what_a_thing_is():
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for name, tree in modules().items():
        nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
        riddles = [text.splitlines()[0] for node in nodes if RIDDLES.match(text := ast.get_docstring(node) or "")]
        assert not riddles, f"{name}: {riddles}; say what it is, as in: The state that ..., Return the ..."


def test_the_front_door_has_few_names():
    names = [path.stem for path in SOURCE.iterdir() if path.name != "__pycache__" and not path.stem.startswith("__")]
    assert len(names) <= 14
