"""Groups of settings that are chosen as a whole: an algorithm, its network and encoder, and a learned reward."""

from dataclasses import is_dataclass
from typing import Any, NamedTuple

from ludus.algorithms.registry import ALGORITHMS, REWARDS, with_defaults
from ludus.networks.builders import NETWORKS
from ludus.networks.encoders import ENCODERS
from ludus.runtime import user_code
from ludus.training.config_keys import Setting, settings_of

DEFAULT_ALGORITHM = "ppo"
CHOICES: dict[str, dict[str, type]] = {
    "algorithm": ALGORITHMS,
    "algorithm/network": NETWORKS,
    "algorithm/network/encoder": ENCODERS,
    "algorithm/reward": REWARDS,
    "algorithm/reward/network": NETWORKS,
}
"""Keys that choose a whole group of settings, and what there is to choose from."""
SHORT = {"network": "algorithm/network", "encoder": "algorithm/network/encoder", "reward": "algorithm/reward"}
"""Shorter names of groups, and what they stand for."""
OTHERS = {"reward.network": "algorithm/reward/network", "storage": "storage.url"}
"""Other keys for which shorter ones stand."""


class Names(NamedTuple):
    """The choices of a run, in the order of `CHOICES`; a part that there is no choice of is an empty text."""

    algorithm: str
    network: str
    encoder: str
    reward: str = ""
    reward_network: str = ""

    @property
    def by_key(self) -> dict[str, str]:
        """Return what is chosen, by the key that chooses it."""
        return {key: name for key, name in zip(CHOICES, self, strict=True) if name}


def full_key(key: str) -> str:
    """Return the key for which a shorter one stands: `network` is that of the algorithm, `encoder` the network's."""
    if key in OTHERS:
        return OTHERS[key]
    for name, group in SHORT.items():
        if key == name:
            return group
        if key.startswith(f"{name}/"):
            return full_key(group + key.removeprefix(name))
        if key.startswith(f"{name}."):
            return group.replace("/", ".") + key.removeprefix(name)
    return key


def default_network(algorithm: str) -> str | None:
    """Return the name of the network that an algorithm, or a reward, prefers; None if it has none to choose."""
    preferred = getattr(with_defaults(algorithm), "network", None)
    if preferred is None:
        return None
    return next((name for name, kind in NETWORKS.items() if type(preferred) is kind), "")


def default_encoder(algorithm: str, network: str) -> str | None:
    """Return the name of the encoder that a network has by default; None if it has none to choose."""
    preferred = getattr(_network_defaults(algorithm, network), "encoder", None)
    return next((name for name, kind in ENCODERS.items() if type(preferred) is kind), None)


def default_names(algorithm: str) -> Names:
    """Return the choices of a user who names the algorithm alone."""
    network = default_network(algorithm) or ""
    return Names(algorithm, network, default_encoder(algorithm, network) or "")


def _network_defaults(algorithm: str, network: str) -> Any:
    """Return what can be set of a network, with the defaults that the algorithm has for it; None if nothing can."""
    return _defaults(NETWORKS, network, getattr(with_defaults(algorithm), "network", None))


def _encoder_defaults(names: Names) -> Any:
    """Return likewise what can be set of its encoder."""
    preferred = getattr(_network_defaults(names.algorithm, names.network), "encoder", None)
    return _defaults(ENCODERS, names.encoder, preferred)


def _defaults(kinds: dict[str, type], name: str, preferred: Any) -> Any:
    kind = kinds.get(name)
    if kind is None:
        kind = user_code.load(name) if ":" in name else None
    if kind is None or not is_dataclass(kind):
        return None
    return preferred if type(preferred) is kind else kind()


def groups_of(names: Names) -> dict[str, list[Setting]]:
    """Return what can be set of an algorithm and its parts, by the prefix of its keys."""
    sources: dict[str, Any] = {
        "algorithm.": with_defaults(names.algorithm),
        "algorithm.network.": _network_defaults(names.algorithm, names.network),
        "algorithm.network.encoder.": _encoder_defaults(names),
    }
    if names.reward:
        sources["algorithm.reward."] = with_defaults(names.reward)
        sources["algorithm.reward.network."] = _network_defaults(names.reward, names.reward_network)
    return {prefix: settings_of(source, prefix) for prefix, source in sources.items()}
