"""Configuration: from `key=value` words to the parts of a run.

The dataclasses of the run, its algorithm and its network are the only place where a setting has a name, a type, a
default and a meaning; Hydra's schemas, the help text and the error messages are made from them. The layers, from
bottom to top: defaults, the preset of the environment and algorithm, the user's files (`config_files.py`) and words.
"""

import ast
import difflib
import functools
import inspect
import itertools
import json
import operator
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from importlib.resources import as_file, files
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from ludus import own_code, withheld
from ludus.config_files import Given, Layer, OwnFiles
from ludus.counting import Budget
from ludus.envs.registry import WORKER_KEYS, as_wrappers, code_in, make_env
from ludus.learning.registry import ALGORITHMS
from ludus.learning.registry import build as build_algorithm
from ludus.networks.actor_critic import NETWORKS
from ludus.settings import NAMES, PARTS, Settings
from ludus.types import LudusError

DEFAULT_ALGORITHM = "ppo"
CHOICES: dict[str, dict[str, type]] = {"algorithm": ALGORITHMS, "algorithm/network": NETWORKS}
"""Keys that choose a whole group of settings, and what there is to choose from."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """What `ludus train` is told: every field is a key, those of `Settings` among them."""

    env: str = MISSING
    """Environment id, such as CartPole-v1; jax:, gym: or envpool: before it picks the library."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Handed to the environment, as in env_options.gravity=12."""
    env_wrappers: list[Any] = field(default_factory=list)
    """Put around a Gymnasium environment, as in [gymnasium.wrappers:FlattenObservation]."""
    num_envs: int = 16
    """Copies of the environment that run side by side."""
    num_workers: int | str = "auto"
    """Processes that Gymnasium environments are spread over; 0: none; auto: measured, whatever is faster."""
    worker_timeout: float = 5.0
    """Seconds that one environment may take for a step or reset before its worker counts as hanging."""
    on_worker_fault: str = "restart"
    """What follows if a worker raises, dies or hangs: restart (its running episodes are dropped) or stop."""
    preset: str | None = "auto"
    """Tuned settings to start from; auto: those for this environment and algorithm, or default/...; null: none."""
    total_steps: int | None = 1_000_000
    """Stop after so many environment steps; null where only max_episodes or max_seconds is given."""
    max_episodes: int | None = None
    """Stop after so many episodes."""
    max_seconds: float | None = None
    """Stop after so much time."""
    run_dir: str | None = None
    """New folder for everything the run writes; null: runs/ENV-ALGORITHM-seedSEED-TIME."""
    algorithm: Any = field(default=MISSING, metadata={"configurable": False})
    """The chosen algorithm's name and settings, its network's among them."""
    sources: list[str] = field(default_factory=list, metadata={"configurable": False})
    """The user's files that some of it came from."""


class Parts(NamedTuple):
    """What a configuration stands for: the arguments of `Trainer` and of its `train`."""

    algorithm: Any
    env: Any
    settings: Settings
    budget: dict[str, Any]


class Setting(NamedTuple):
    """One key that can be set."""

    key: str
    type: Any
    default: Any
    meaning: str

    @property
    def type_name(self) -> str:
        """The type in words."""
        args = get_args(self.type)
        if type(None) in args:
            return f"{_type_name(args[0])} or null"
        return " or ".join(map(_type_name, args)) if isinstance(self.type, UnionType) else _type_name(self.type)


def compose(overrides: Sequence[str], own: OwnFiles = OwnFiles()) -> TrainConfig:  # noqa: B008  frozen
    """Lay the user's `key=value` words over files, preset and defaults; LudusError for the first that is wrong."""
    own = replace(own, used=[])
    parsed = {override.key_or_group: override for override in map(_parse_single, overrides)}
    typed = {key: Given(override.value(), str(override.input_line)) for key, override in parsed.items()}
    given = own.given() | typed
    env = str(given["env"].value) if "env" in given else "None"
    algorithm, below = _chosen("algorithm", own, [given], _default_algorithm(env, own))
    preset = _preset(given.pop("preset", Given("auto", "")).value, env, algorithm, own)
    below = own.option("preset", preset) | below
    network, network_layer = _chosen("algorithm/network", own, [given, below], _default_network(algorithm))
    given = below | network_layer | given
    groups = _groups(algorithm, network)
    known = {setting.key: setting for group in groups.values() for setting in group}
    for key, (_, where) in given.items():
        _check_key(key, known, where if key not in typed else "")
    config = _base(groups, algorithm, network, None if preset in own.names("preset") else preset)
    config.preset, config.sources = preset, own.used
    if any(name in given and given[name].value is not None for name in ("max_episodes", "max_seconds")):
        config.total_steps = None
    for key, (value, where) in given.items():
        _set(config, key, value, known.get(key), where)
    made = _resolved(config)
    withheld.check("env_options", made.env_options)
    withheld.check("env_wrappers", made.env_wrappers)
    if made.sources:
        _check_code(made, typed)
    return made


def changes(words: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` words that change a run that exists; which of them it can take is not decided here."""
    groups = _groups(DEFAULT_ALGORITHM, _default_network(DEFAULT_ALGORITHM))
    known = {setting.key: setting for prefix in ("", *(f"{part}." for part in PARTS)) for setting in groups[prefix]}
    config = _blank()
    values = {}
    for override in map(_parse_single, words):
        key, value = override.key_or_group, override.value()
        if key in known:
            _set(config, key, value, known[key], str(override.input_line))
            value = OmegaConf.select(config, key)
        values[key] = value
    return values


def build(config: TrainConfig) -> Parts:
    """Make the algorithm and the environment; what a trainer would refuse only with its folder made is refused here."""
    algorithm = build_algorithm(config.algorithm)
    if misplaced := {"env", "num_envs", "env_wrappers", *WORKER_KEYS} & config.env_options.keys():
        raise LudusError(f"env_options.{min(misplaced)}: not an option of the environment; the key is {min(misplaced)}")
    budget = {name: getattr(config, name) for name in Budget._fields}
    Budget(**budget).limits()
    settings = Settings(**{name: getattr(config, name) for name in NAMES})
    workers = {name: getattr(config, name) for name in WORKER_KEYS}
    given: dict[str, Any] = {**workers, "env_wrappers": config.env_wrappers, **config.env_options}
    return Parts(algorithm, make_env(config.env, config.num_envs, **given), settings, budget)


def combinations(overrides: Sequence[str]) -> dict[str, list[str]]:
    """Return the overrides of every run of a sweep, by a name made of those that differ, such as `seed=1`."""
    choices = [_alternatives(text) for text in overrides]
    runs = {}
    for words in itertools.product(*choices):
        name = ",".join(word for word, choice in zip(words, choices, strict=True) if len(choice) > 1)
        runs[name] = list(words)
    return runs


def presets() -> list[str]:
    """Return the names of all presets, such as `CartPole-v1/ppo`."""
    with as_file(files("ludus.conf") / "preset") as root:
        return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def help_text() -> str:
    """Return every key with its type, default and meaning."""
    network = _default_network(DEFAULT_ALGORITHM)
    chosen = zip(CHOICES.items(), (DEFAULT_ALGORITHM, network), strict=True)
    choices = [
        Setting(key, str, default, f"one of {', '.join(of)}; its settings are below") for (key, of), default in chosen
    ]
    sections = {"run": [*_groups(DEFAULT_ALGORITHM, network)[""], *choices]}
    for part in PARTS:
        sections[part] = _groups(DEFAULT_ALGORITHM, network)[f"{part}."]
    for name in ALGORITHMS:
        sections[f"algorithm={name}"] = _groups(name, _default_network(name))["algorithm."]
    for name in NETWORKS:
        sections[f"algorithm/network={name}"] = _groups(DEFAULT_ALGORITHM, name)["algorithm.network."]
    text = "\n\n".join("\n".join([f"{title}:", *_table(group)]) for title, group in sections.items())
    return f"{text}\n\npresets: {', '.join(presets())}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is most like this one, or an empty text."""

    def likeness(candidate: str) -> tuple[float, float]:
        end, other = (re.split("[./]", text)[-1] for text in (word, candidate))  # gamma is for algorithm.gamma
        return difflib.SequenceMatcher(None, end, other).ratio(), difflib.SequenceMatcher(None, word, candidate).ratio()

    best = max(known, key=likeness)
    return f"; did you mean {best}?" if likeness(best)[0] > 0.65 else ""


def _parse(text: str) -> Override:
    key, equals, value = text.partition("=")
    if not equals or text.startswith("-"):
        raise LudusError(f"{text}: expected key=value, such as env=CartPole-v1")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise LudusError(f"{text}: cannot be read ({reason}); quote special characters: '{key}=\"{value}\"'") from error
    if override.type is OverrideType.DEL or override.package is not None:
        raise LudusError(f"{text}: a key can only be set, as in key=value")
    return override


def _parse_single(text: str) -> Override:
    override = _parse(text)
    if override.is_sweep_override():
        raise LudusError(f"{text}: several values need -m, which trains once with each; a list is written [1,2]")
    return override


def _alternatives(text: str) -> list[str]:
    override = _parse(text)
    if not override.is_sweep_override():
        return [text]
    try:
        return [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]
    except HydraException as error:
        raise LudusError(f"{text}: cannot be swept ({error})") from error


def _chosen(key: str, own: OwnFiles, layers: list[Layer], default: str) -> tuple[str, Layer]:
    """Return which of our algorithms or networks is chosen, by name or by a user's file, and what such files say.

    A file may itself choose, by its `name`: one of ours or another file.
    """
    given = [str(layer.pop(key).value) for layer in layers if key in layer]
    name, said, seen = given[0] if given else default, {}, []
    while given and name in own.names(key) and name not in seen:
        seen.append(name)
        layer = own.option(key, name)
        name = str(layer.pop(key).value) if key in layer else default
        said = layer | said
    known = list(dict.fromkeys([*CHOICES[key], *own.names(key)]))
    if name not in CHOICES[key]:
        raise LudusError(f"{key}={name}: must be one of {', '.join(known)}{nearest(name, known)}")
    return name, said


def _check_code(config: TrainConfig, typed: Layer) -> None:
    """Refuse code that a file names, unless it was used before; what was typed is the user's own command."""
    typed_env, typed_wrappers = (typed[key].value if key in typed else () for key in ("env", "env_wrappers"))
    names = code_in(config.env, as_wrappers(config.env_wrappers))
    commanded = code_in(typed_env, as_wrappers(typed_wrappers))
    own_code.check_saved([name for name in names if name not in commanded], ", ".join(config.sources))


def _default_network(algorithm: str) -> str:
    default = type(ALGORITHMS[algorithm]().network)
    return next(name for name, kind in NETWORKS.items() if kind is default)


def _groups(algorithm: str, network: str) -> dict[str, list[Setting]]:
    """Return everything that can be set, by the prefix of its keys."""
    chosen, kind = ALGORITHMS[algorithm](), NETWORKS[network]
    # An algorithm may have defaults of its own for the network it prefers.
    sizes = chosen.network if type(chosen.network) is kind else kind()
    sources = {
        "": TrainConfig(),
        **{f"{part}.": kind() for part, kind in PARTS.items()},
        "algorithm.": chosen,
        "algorithm.network.": sizes,
    }
    return {prefix: _settings(source, prefix) for prefix, source in sources.items()}


def _settings(source: Any, prefix: str) -> list[Setting]:
    """Return what can be set in a dataclass, of which `source` holds the defaults."""
    hints, docs = get_type_hints(type(source)), _field_docs(type(source))
    made = []
    # What a class adds comes before what it builds on.
    for f in sorted(fields(source), key=lambda f: f.name not in type(source).__annotations__):
        if f.name not in ("network", *PARTS) and f.metadata.get("configurable", True):
            hint, default = hints[f.name], getattr(source, f.name)
            # OmegaConf has lists only; the dataclasses make tuples of them again.
            default = list(default) if isinstance(default, tuple) else default
            meaning = f.metadata.get("meaning") or docs.get(f.name, "")
            made.append(Setting(prefix + f.name, _with_lists(hint), default, meaning))
    return made


def _with_lists(hint: Any) -> Any:
    """Return a type with lists for tuples."""
    if isinstance(hint, UnionType):
        return functools.reduce(operator.or_, map(_with_lists, get_args(hint)))
    return list.__class_getitem__(get_args(hint)[0]) if get_origin(hint) is tuple else hint


def _type_name(kind: Any) -> str:
    if get_origin(kind) is not list:
        return kind.__name__
    (part,) = get_args(kind)
    return "list" if part is Any else f"list of {part.__name__}"


def _field_docs(kind: type) -> dict[str, str]:
    """Return the text under each field of a dataclass, as a phrase."""
    docs = {}
    for base in kind.__mro__[:-1]:
        try:
            nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))))
        except (OSError, TypeError):  # a class that was not read from a file
            continue
        for above, below in itertools.pairwise(nodes):  # breadth first: neighbours in the class are neighbours here
            match above, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    text = " ".join(text.split())
                    docs[name] = (text if text[1].isupper() else text[0].lower() + text[1:]).rstrip(".")
    return docs


def _check_key(key: str, known: dict[str, Setting], where: str = "") -> None:
    if key in known or key.startswith("env_options."):
        return
    names = [*known, *CHOICES]
    beside = [name for name in names if name.rpartition(".")[0] == key.rpartition(".")[0]]
    hint = nearest(key, names) or f"; there are {', '.join(beside or names)}"
    raise LudusError(f"{where or key}: no such key{hint} (ludus train --help explains all)")


def _preset(asked: Any, env: str, algorithm: str, own: OwnFiles) -> str | None:
    """Return the name of the preset to use: the one asked for, or the one that fits."""
    known = [*presets(), *own.names("preset")]
    if asked == "auto":
        fitting = f"{_bare(env)}/{algorithm}", f"default/{algorithm}"
        return next((name for name in fitting if name in known), None)
    if asked is not None and asked not in known:
        raise LudusError(f"preset={asked}: must be auto, null or one of {', '.join(known)}{nearest(str(asked), known)}")
    return asked


def _default_algorithm(env: str, own: OwnFiles) -> str:
    """Return the algorithm for a user who names none: PPO, unless only another has a preset for the environment."""
    names = [*presets(), *own.names("preset")]
    tuned = [name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == _bare(env)]
    tuned = [name for name in tuned if name in ALGORITHMS]
    return DEFAULT_ALGORITHM if DEFAULT_ALGORITHM in tuned or not tuned else tuned[0]


def _bare(env: str) -> str:
    return env.rpartition(":")[2]


def _base(groups: dict[str, list[Setting]], algorithm: str, network: str, preset: str | None) -> DictConfig:
    """Let Hydra compose the schemas, which hold the defaults, and the preset."""
    store = ConfigStore.instance()
    store.store("ludus_train", _blank())
    store.store(algorithm, _schema(algorithm, groups["algorithm."], ("network", Any, MISSING)), "algorithm")
    store.store(network, _schema(network, groups["algorithm.network."]), "algorithm/network")
    layers = [f"+algorithm={algorithm}", f"+algorithm/network={network}", *([f"+preset={preset}"] if preset else [])]
    with hydra.initialize_config_module("ludus.conf", version_base=None):
        return hydra.compose("ludus_train", layers)


def _blank() -> DictConfig:
    """Return the defaults of a run."""
    run = OmegaConf.structured(TrainConfig)
    for part in (run, *(run[name] for name in PARTS)):
        OmegaConf.set_readonly(part, None)  # OmegaConf freezes what it makes from a frozen dataclass
    return run


def _schema(name: str, group: list[Setting], *more: tuple[str, Any, Any]) -> type:
    """Return a dataclass that OmegaConf understands, with the name that `learning.registry.build` asks for."""
    members = [("name", str, name), *((s.key.rpartition(".")[2], s.type, s.default) for s in group), *more]
    return make_dataclass(name, [(key, kind, field(default_factory=lambda d=d: d)) for key, kind, d in members])


def _set(config: DictConfig, key: str, value: Any, setting: Setting | None, text: str) -> None:
    if setting and setting.type in (int, int | None) and isinstance(value, float) and value.is_integer():
        value = int(value)  # total_steps=1e6
    try:
        OmegaConf.update(config, key, value, force_add=setting is None)
    except OmegaConfBaseException as error:
        allowed = f"must be of type {setting.type_name}" if setting else str(error).splitlines()[0]
        raise LudusError(f"{text}: {allowed}") from error


def _resolved(config: DictConfig) -> TrainConfig:
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        given: Any = OmegaConf.to_container(config)
    except MissingMandatoryValue as error:
        raise LudusError(f"{error.full_key}: required, but not given (as in env=CartPole-v1)") from error
    except OmegaConfBaseException as error:
        raise LudusError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    values |= {part: kind(**values[part]) for part, kind in PARTS.items()}
    values |= {name: _with_variables(values[name], given[name]) for name in ("env_options", "env_wrappers")}
    return TrainConfig(**values)


def _with_variables(value: Any, given: Any) -> Any:
    """Return a value in which texts that name environment variables stand as they were given: so they are saved."""
    if isinstance(value, dict) and isinstance(given, dict):
        return {key: _with_variables(entry, given[key]) for key, entry in value.items()}
    if isinstance(value, list) and isinstance(given, list):
        return [_with_variables(*both) for both in zip(value, given, strict=True)]
    return given if withheld.is_named(given) else value


def _table(group: list[Setting]) -> list[str]:
    rows = [(s.key, s.type_name, json.dumps(s.default).strip('"').replace(MISSING, "required")) for s in group]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ["  ".join(map(str.ljust, row, widths)) for row in rows]
    return [f"  {row}  {setting.meaning}" for row, setting in zip(cells, group, strict=True)]
