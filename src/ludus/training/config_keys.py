"""The keys that can be set: each with its type, default and meaning, as the dataclasses of a run say them."""

import ast
import functools
import inspect
import itertools
import json
import operator
import textwrap
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from omegaconf import MISSING

from ludus.algorithms import schedules
from ludus.algorithms.hyperparameters import is_traced
from ludus.training.settings import PARTS
from ludus.types import LudusError


class Setting(NamedTuple):
    """One key that can be set."""

    key: str
    type: Any
    default: Any
    meaning: str
    is_schedulable: bool = False
    """Whether a schedule over progress may stand for it."""

    @property
    def type_name(self) -> str:
        """The type in words."""
        args = get_args(self.type)
        if type(None) in args:
            return f"{_type_name(args[0])} or null"
        return " or ".join(map(_type_name, args)) if isinstance(self.type, UnionType) else _type_name(self.type)


def settings_of(source: Any, prefix: str) -> list[Setting]:
    """Return what can be set in a dataclass, of which `source` holds the defaults."""
    if not is_dataclass(source):
        return []
    hints, docs = get_type_hints(type(source)), _field_docs(type(source))
    made = []
    # What a class adds comes before what it builds on.
    for f in sorted(fields(source), key=lambda f: f.name not in type(source).__annotations__):
        if f.name not in ("network", *PARTS) and f.metadata.get("configurable", True):
            hint, default = hints[f.name], getattr(source, f.name)
            # OmegaConf has lists only; the dataclasses make tuples of them again.
            default = list(default) if isinstance(default, tuple) else default
            meaning = f.metadata.get("meaning") or docs.get(f.name, "")
            default = str(default) if isinstance(default, schedules.Schedule) else default
            made.append(Setting(prefix + f.name, _with_lists(hint), default, meaning, is_traced(f)))
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


@functools.lru_cache(maxsize=64)
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


def check_schedulable(setting: Setting, value: Any, text: str) -> None:
    """Refuse what is neither a number nor a schedule."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, str):
        schedules.parse(setting.key, value)
    elif not is_number and not (value is None and type(None) in get_args(setting.type)):
        raise LudusError(f"{text}: must be of type {setting.type_name}, or a schedule: {schedules.FORMS}")


def table(group: list[Setting]) -> list[str]:
    """Return a line of help for each key."""
    rows = [(s.key, s.type_name, json.dumps(s.default).strip('"').replace(MISSING, "required")) for s in group]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ["  ".join(map(str.ljust, row, widths)) for row in rows]
    return [f"  {row}  {setting.meaning}" for row, setting in zip(cells, group, strict=True)]
