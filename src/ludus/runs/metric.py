"""One figure of the journal: a row of the table in `metrics.py`."""

from typing import NamedTuple


class Metric(NamedTuple):
    """A figure of the journal."""

    name: str
    """A part in angle brackets, such as `<layer>`, stands for any text: the row is about many figures."""
    meaning: str = ""
    """What it is, in words or as a formula; empty where the algorithm says it."""
    title: str = ""
    """What it is called in figures."""
    unit: str = ""
    group: str = "train"
    """Where TensorBoard shows it; empty where its name has a group already."""
    aliases: tuple[str, ...] = ()
    """What the founding documents call it; one that begins with a minus is minus the figure."""
    summary: str = ""
    """What an evaluation's own summary calls it."""
