"""The sequence tasks by their ids."""

from collections.abc import Callable

from ludus.envs.base import Environment
from ludus.envs.sequence.tokens import Addition, Brackets, Copy, Sorting
from ludus.envs.sequence.vector_toy import vector_toy

SEQUENCE_TASKS: dict[str, Callable[..., Environment]] = {
    "Addition-v1": Addition,
    "Brackets-v1": Brackets,
    "Copy-v1": Copy,
    "Sorting-v1": Sorting,
    "VectorToy-v1": vector_toy,
}
