"""The words of a command line: `key=value`, read by Hydra's grammar; and the runs of a sweep."""

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from ludus.types import LudusError


def combinations(overrides: Sequence[str]) -> dict[str, list[str]]:
    """Return the overrides of every run of a sweep, by a name made of those that differ, such as `seed=1`."""
    choices = [_alternatives(text) for text in overrides]
    runs = {}
    for words in itertools.product(*choices):
        name = ",".join(word for word, choice in zip(words, choices, strict=True) if len(choice) > 1)
        runs[name] = list(words)
    return runs


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


def parse_single(text: str) -> Override:
    """Read one word that sets a key to one value."""
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
