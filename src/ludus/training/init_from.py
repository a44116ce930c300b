"""`init_from`: a run that begins with the policy, and the critic, of another one in place of fresh ones.

Weights and the statistics that observations are normalised by are taken over; optimiser, replay and counters are new.
Once it has begun, a run has no need of the other any more: its checkpoints hold all of it.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from ludus.algorithms.base import Algorithm
from ludus.algorithms.critic import FINAL as FINAL_CRITIC
from ludus.algorithms.critic import Critic, load_critic
from ludus.algorithms.policy import FINAL, Policy, load_policy
from ludus.algorithms.ppo_state import PPOPolicy
from ludus.algorithms.registry import name_of
from ludus.algorithms.sac_state import SACPolicy
from ludus.networks.builders import GRU, MLP, Transformer
from ludus.training.settings import Settings
from ludus.types import LudusError, Spec, Tree

ACTORS = {PPOPolicy: "ppo", SACPolicy: "sac"}
"""The algorithm whose actor a policy has."""
STATISTICS = ("observations", "returns", "rewards")
"""The parts of a state by which `normalize_...` scales; None where it does not."""


def pinned(settings: Settings, algorithm: Algorithm, spec: Spec) -> Settings:
    """Return settings that name the checksum of the policy that a run begins with; LudusError if it cannot begin so.

    Where they name it already, the run may have begun long ago, and nothing is read.
    """
    if settings.init_from is None or settings.init_from_sha256 is not None:
        return settings
    algorithm.validate(spec)
    begun(replace(settings, init_from_sha256=None), algorithm, spec, algorithm.blank(spec))
    return replace(settings, init_from_sha256=_sha256(_file(settings.init_from)))


def begun(settings: Settings, algorithm: Algorithm, spec: Spec, learner: Tree) -> Any:
    """Return a fresh learner with what the settings say it begins with."""
    if settings.init_from is None:
        return learner
    file = _file(settings.init_from)
    if settings.init_from_sha256 not in (None, _sha256(file)):
        raise _refusal(settings, f"the SHA-256 of {file} is not {settings.init_from_sha256}")
    try:
        policy, critic = load_policy(file), _critic(Path(settings.init_from))
    except LudusError as error:
        raise _refusal(settings, str(error)) from error
    _check(settings, algorithm, spec, policy, algorithm.policy(learner))
    learner = algorithm.begin_with(learner, _moved(policy.state, algorithm.policy(learner)))
    own = algorithm.critic(learner)
    if critic is None or type(critic.state) is not type(own):
        return learner
    if unlike := _unlike(critic.algorithm, algorithm, critic.state, own):
        raise _refusal(settings, f"its critic {unlike}, or begin with its policy alone, init_from={file}")
    return algorithm.with_critic(learner, _moved(critic.state, own))


def _file(path: str) -> Path:
    """Return the policy's file of a run folder, or the file that was named."""
    file = Path(path) / FINAL if Path(path).is_dir() else Path(path)
    if not file.is_file():
        instead = "; name one of its policies/" if Path(path, "policies").is_dir() else ""
        raise LudusError(f"init_from={path}: there is no policy file {file}{instead}")
    return file


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise LudusError(f"init_from={file}: cannot be read ({error.strerror or error})") from error


def _critic(path: Path) -> Critic | None:
    """Return the critic of a run folder, if it has one."""
    return load_critic(path) if path.is_dir() and (path / FINAL_CRITIC).is_file() else None


def _check(settings: Settings, algorithm: Algorithm, spec: Spec, policy: Policy, own: Tree) -> None:
    """Refuse a policy of other spaces, of another kind, of another network, or that is normalised otherwise."""
    for kind in ("observation_space", "action_space"):
        theirs, ours = getattr(policy.spec, kind), getattr(spec, kind)
        if theirs != ours:
            said = f"its {kind.replace('_', ' ')} is {str(theirs)[:200]}, and this run's {str(ours)[:200]}"
            raise _refusal(settings, said)
    if policy.spec.scaling != spec.scaling:
        raise _refusal(settings, "its policy scales images or actions as the first versions did, and no run does now")
    if type(policy.state) is not type(own):
        raise _refusal(settings, _other_actor(policy, algorithm, own))
    if unlike := _unlike(policy.algorithm, algorithm, policy.state, own):
        raise _refusal(settings, f"its policy {unlike}")


def _other_actor(policy: Policy, algorithm: Algorithm, own: Tree) -> str:
    theirs, ours = (ACTORS.get(type(state), type(state).__name__) for state in (policy.state, own))
    names = [name_of(one) for one in (policy.algorithm, algorithm)]
    said = (
        f"its policy, of algorithm={names[0]}, has the actor of {theirs}, and algorithm={names[1]} has that of {ours}"
    )
    if names[0] == "bc":
        return f"{said}: clone with algorithm.actor={ours}"
    return f"{said}: give algorithm.actor={theirs}" if names[1] == "bc" else said


def _unlike(theirs: Algorithm, ours: Algorithm, saved: Tree, own: Tree) -> str:
    """Return how what was saved differs from what this run has, and what to do about it; nothing if it does not."""
    for part in STATISTICS:
        if hasattr(own, part) and (getattr(saved, part) is None) != (getattr(own, part) is None):
            was = f"normalize_{part}={str(getattr(saved, part) is not None).lower()}"
            return f"was trained with {was}: give algorithm.{was}"
    networks = [_network(algorithm, own) for algorithm in (theirs, ours)]
    shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(state)] for state in (saved, own)]
    if networks[0] != networks[1] or shapes[0] != shapes[1]:
        return f"has the network {networks[0]}, and this run has {networks[1]}: give it the same"
    return ""


def _network(algorithm: Algorithm, own: Tree) -> object:
    """Return the configuration of a network; SAC's actor has none of a critic's sizes."""
    network = getattr(algorithm, "network", None)
    is_actor_alone = isinstance(own, SACPolicy) and isinstance(network, MLP | GRU | Transformer)
    return replace(network, critic_hidden_sizes=None) if is_actor_alone else network


def _moved(saved: Tree, own: Tree) -> Any:
    """Return what was saved as a part of this run's learner, which may be of another number of environments."""
    return jax.tree.unflatten(jax.tree.structure(own), jax.tree.leaves(saved))


def _refusal(settings: Settings, said: str) -> LudusError:
    return LudusError(f"init_from={settings.init_from}: {said}")
