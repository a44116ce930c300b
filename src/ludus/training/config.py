"""Configuration: from `key=value` words to the parts of a run.

The dataclasses of the run, its algorithm and its network are the only place where a setting has a name, a type, a
default and a meaning; Hydra's schemas, the help text and the error messages are made from them. The layers, from
bottom to top: defaults, the preset of the environment and algorithm, the user's files (`config_files.py`) and words.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from importlib.resources import as_file, files
from typing import Any, NamedTuple

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from ludus.algorithms import schedules
from ludus.algorithms.base import Algorithm
from ludus.algorithms.registry import ALGORITHMS, REWARDS
from ludus.algorithms.registry import build as build_algorithm
from ludus.envs.base import AnyEnv
from ludus.envs.registry import WORKER_KEYS, as_wrappers, code_in, make_env
from ludus.networks.builders import NETWORKS
from ludus.networks.encoders import ENCODERS
from ludus.runtime import secrets, user_code
from ludus.training.budget import Budget
from ludus.training.config_files import Given, Layer, OwnFiles
from ludus.training.config_groups import (
    CHOICES,
    DEFAULT_ALGORITHM,
    Names,
    default_encoder,
    default_names,
    default_network,
    full_key,
    groups_of,
)
from ludus.training.config_keys import Setting, check_schedulable, settings_of, table
from ludus.training.config_words import nearest, parse_single
from ludus.training.settings import NAMES, PARTS, Settings
from ludus.training.settings import code_in as code_of_parts
from ludus.types import LudusError


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """The words of `ludus train`: every field is a key, those of `Settings` among them."""

    env: str = MISSING
    """Environment id, such as CartPole-v1 or gym:Hopper-v5, or your own my_module:MyEnv."""
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
    """The meaning of a configuration: the arguments of `Trainer` and of its `train`."""

    algorithm: Algorithm
    env: AnyEnv
    settings: Settings
    budget: dict[str, Any]


def compose(overrides: Sequence[str], own: OwnFiles = OwnFiles()) -> TrainConfig:  # noqa: B008  frozen
    """Lay the user's `key=value` words over files, preset and defaults; LudusError for the first that is wrong."""
    own = replace(own, used=[])
    parsed = {full_key(override.key_or_group): override for override in map(parse_single, overrides)}
    typed = {key: Given(override.value(), str(override.input_line)) for key, override in parsed.items()}
    given = own.given() | typed
    env = str(given["env"].value) if "env" in given else "None"
    algorithm, below = _chosen("algorithm", own, [given], _default_algorithm(env, own), typed)
    preset = _preset(given.pop("preset", Given("auto", "")).value, env, algorithm, own)
    below = own.option("preset", preset) | below
    default = default_network(algorithm)
    network, network_layer = _chosen("algorithm/network", own, [given, below], default or "", typed)
    if network and default is None:
        raise LudusError(f"algorithm/network={network}: algorithm={algorithm} has no network to choose")
    own_encoder = default_encoder(algorithm, network)
    encoder, encoder_layer = _chosen(
        "algorithm/network/encoder", own, [given, network_layer, below], own_encoder or "", typed
    )
    if encoder and own_encoder is None:
        raise LudusError(f"algorithm/network/encoder={encoder}: {network or algorithm} has no encoder to choose")
    reward, reward_layer = _chosen("algorithm/reward", own, [given, below], "", typed)
    judging = default_network(reward) or "" if reward else ""
    judging, judging_layer = _chosen("algorithm/reward/network", own, [given, reward_layer, below], judging, typed)
    given = below | network_layer | encoder_layer | reward_layer | judging_layer | given
    names = Names(algorithm, network, encoder, reward, judging if reward else "")
    groups = _groups(names)
    known = {setting.key: setting for group in groups.values() for setting in group}
    for key, (_, where) in given.items():
        _check_key(key, known, where if key not in typed else "")
    config = _base(groups, names, None if preset in own.names("preset") else preset)
    config.preset, config.sources = preset, own.used
    if any(name in given and given[name].value is not None for name in ("max_episodes", "max_seconds")):
        config.total_steps = None
    for key, (value, where) in given.items():
        _set(config, key, value, known.get(key), where)
    made = _resolved(config)
    secrets.check("env_options", made.env_options)
    secrets.check("env_wrappers", made.env_wrappers)
    if made.sources:
        _check_code(made, typed)
    return made


def changes(words: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` words that change a run that exists; which of them it can take is not decided here."""
    groups = _groups(default_names(DEFAULT_ALGORITHM))
    known = {setting.key: setting for prefix in ("", *(f"{part}." for part in PARTS)) for setting in groups[prefix]}
    config = _blank()
    values = {}
    for override in map(parse_single, words):
        key, value = override.key_or_group, override.value()
        key = full_key(key) if key == "storage" else key
        if key in known:
            _set(config, key, value, known[key], str(override.input_line))
            value = OmegaConf.select(config, key)
            value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
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


def presets() -> list[str]:
    """Return the names of all presets, such as `CartPole-v1/ppo`."""
    with as_file(files("ludus.training") / "presets") as root:
        return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def help_text() -> str:
    """Return every key with its type, default and meaning."""
    names = default_names(DEFAULT_ALGORITHM)
    chosen = zip(CHOICES.items(), names._replace(reward="null", reward_network="mlp"), strict=True)
    choices = [
        Setting(key, str, default, f"one of {', '.join(of)}; its settings are below") for (key, of), default in chosen
    ]
    sections = {"run": [*_groups(names)[""], *choices]}
    for part in PARTS:
        sections[part] = _groups(names)[f"{part}."]
    for name in ALGORITHMS:
        sections[f"algorithm={name}"] = _groups(default_names(name))["algorithm."]
    for name in NETWORKS:
        sections[f"algorithm/network={name}"] = _groups(names._replace(network=name))["algorithm.network."]
    for name in ENCODERS:
        sections[f"algorithm/network/encoder={name}"] = _groups(names._replace(encoder=name))[
            "algorithm.network.encoder."
        ]
    for name in REWARDS:
        sections[f"reward={name}"] = _groups(names._replace(reward=name, reward_network="mlp"))["algorithm.reward."]
    text = "\n\n".join("\n".join([f"{title}:", *table(group)]) for title, group in sections.items() if group)
    hint = f"a float of an algorithm may also follow the progress of the run: {schedules.FORMS}"
    return f"{text}\n\n{hint}\n\npresets: {', '.join(presets())}"


def _chosen(key: str, own: OwnFiles, layers: list[Layer], default: str, typed: Layer) -> tuple[str, Layer]:
    """Return which algorithm, network or encoder is chosen, by name or by a user's file, and what such files say.

    A file may itself choose, by its `name`: one of ours, another file or code of the user's own, as `module:Name`.
    """
    given = [str(layer.pop(key).value) for layer in layers if key in layer]
    given = given if default else [name for name in given if name != "None"]
    name, said, seen = given[0] if given else default, {}, []
    while given and name in own.names(key) and name not in seen:
        seen.append(name)
        layer = own.option(key, name)
        name = str(layer.pop(key).value) if key in layer else default
        said = layer | said
    known = list(dict.fromkeys([*CHOICES[key], *own.names(key)]))
    if ":" in name:
        if key not in typed or str(typed[key].value) != name:
            user_code.check_saved([name], ", ".join(own.used))
    elif name not in CHOICES[key] and name != default:
        raise LudusError(
            f"{key}={name}: must be one of {', '.join(known)}, or your own as in my_module:Name{nearest(name, known)}"
        )
    return name, said


def _check_code(config: TrainConfig, typed: Layer) -> None:
    """Refuse code that a file names, unless it was used before; what was typed is the user's own command."""
    typed_env, typed_wrappers = (typed[key].value if key in typed else () for key in ("env", "env_wrappers"))
    names = code_in(config.env, as_wrappers(config.env_wrappers))
    commanded = code_in(typed_env, as_wrappers(typed_wrappers))
    named = code_of_parts(vars(config)).items()
    names += [name for key, own in named if key not in typed for name in own]
    user_code.check_saved([name for name in names if name not in commanded], ", ".join(config.sources))


def _groups(names: Names) -> dict[str, list[Setting]]:
    """Return everything that can be set, by the prefix of its keys."""
    run = {"": TrainConfig(), **{f"{part}.": kind() for part, kind in PARTS.items()}}
    return {prefix: settings_of(source, prefix) for prefix, source in run.items()} | groups_of(names)


def _check_key(key: str, known: dict[str, Setting], where: str = "") -> None:
    if key in known or key.startswith(("env_options.", "curriculum.")):
        return
    if key.startswith("algorithm.reward.") and not any(name.startswith("algorithm.reward.") for name in known):
        raise LudusError(f"{where or key}: needs a learned reward; give reward={' or '.join(REWARDS)} too")
    names = [*known, *CHOICES]
    beside = [name for name in names if name.rpartition(".")[0] == key.rpartition(".")[0]]
    hint = nearest(key, names) or f"; there are {', '.join(beside or names)}"
    raise LudusError(f"{where or key}: no such key{hint} (ludus train --help explains all)")


def _preset(asked: Any, env: str, algorithm: str, own: OwnFiles) -> str | None:
    """Return the name of the preset to use: the one asked for, or the one that fits."""
    known = [*presets(), *own.names("preset")]
    if asked == "auto":
        fitting = f"{env.rpartition(':')[2]}/{algorithm}", f"default/{algorithm}"
        return next((name for name in fitting if name in known), None)
    if asked is not None and asked not in known:
        raise LudusError(f"preset={asked}: must be auto, null or one of {', '.join(known)}{nearest(str(asked), known)}")
    return asked


def _default_algorithm(env: str, own: OwnFiles) -> str:
    """Return the algorithm for a user who names none: PPO, unless only another has a preset for the environment."""
    names = [*presets(), *own.names("preset")]
    tuned = [name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == env.rpartition(":")[2]]
    tuned = [name for name in tuned if name in ALGORITHMS]
    return DEFAULT_ALGORITHM if DEFAULT_ALGORITHM in tuned or not tuned else tuned[0]


def _base(groups: dict[str, list[Setting]], names: Names, preset: str | None) -> DictConfig:
    """Let Hydra compose the schemas, which hold the defaults, and the preset."""
    store = ConfigStore.instance()
    store.store("ludus_train", _blank())
    chosen, layers = names.by_key, []
    for group, name in chosen.items():
        parts = (key.rpartition("/") for key in chosen)
        inside = [(part, Any, MISSING) for above, _, part in parts if above == group]
        store.store(_plain_name(name), _schema(name, groups[f"{group.replace('/', '.')}."], *inside), group)
        layers.append(f"+{group}={_plain_name(name)}")
    layers += [f"+presets={preset}"] if preset else []
    with hydra.initialize_config_module("ludus.training", version_base=None):
        return hydra.compose("ludus_train", layers)


def _blank() -> DictConfig:
    """Return the defaults of a run."""
    run = OmegaConf.structured(TrainConfig)
    for part in (run, *(run[name] for name in PARTS)):
        OmegaConf.set_readonly(part, None)  # OmegaConf freezes what it makes from a frozen dataclass
    return run


def _schema(name: str, group: list[Setting], *more: tuple[str, Any, Any]) -> type:
    """Return a dataclass that OmegaConf understands, with the name that `algorithms.registry.build` asks for."""
    kinds = [(s.key.rpartition(".")[2], Any if s.is_schedulable else s.type, s.default) for s in group]
    members = [("name", str, name), *kinds, *more]
    return make_dataclass(
        _plain_name(name), [(key, kind, field(default_factory=lambda d=d: d)) for key, kind, d in members]
    )


def _set(config: DictConfig, key: str, value: Any, setting: Setting | None, text: str) -> None:
    if setting and setting.type in (int, int | None) and isinstance(value, float) and value.is_integer():
        value = int(value)  # total_steps=1e6
    if setting and setting.is_schedulable:
        check_schedulable(setting, value, text)
    try:
        OmegaConf.update(config, key, value, force_add=setting is None)
    except OmegaConfBaseException as error:
        allowed = f"must be of type {setting.type_name}" if setting else str(error).splitlines()[0]
        raise LudusError(f"{text}: {allowed}") from error


def _plain_name(name: str) -> str:
    """Return a name as Hydra and Python know them, for code of the user's own."""
    return re.sub(r"\W", "_", name)


def _resolved(config: DictConfig) -> TrainConfig:
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        given: Any = OmegaConf.to_container(config)
    except MissingMandatoryValue as error:
        raise LudusError(f"{error.full_key}: required, but not given (as in env=CartPole-v1)") from error
    except OmegaConfBaseException as error:
        raise LudusError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    values["tracking"]["own"] = _with_variables(values["tracking"]["own"], given["tracking"]["own"])
    values |= {part: kind(**values[part]) for part, kind in PARTS.items()}
    values |= {
        name: _with_variables(values[name], given[name]) for name in ("env_options", "env_wrappers", "callbacks")
    }
    return TrainConfig(**values)


def _with_variables(value: Any, given: Any) -> Any:
    """Return a value in which texts that name environment variables stand as they were given: so they are saved."""
    if isinstance(value, dict) and isinstance(given, dict):
        return {key: _with_variables(entry, given[key]) for key, entry in value.items()}
    if isinstance(value, list) and isinstance(given, list):
        return [_with_variables(*both) for both in zip(value, given, strict=True)]
    return given if secrets.is_named(given) else value
