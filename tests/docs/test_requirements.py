"""The requirements page counts without gaps, and every marker in these tests names one of its lines."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from places import DOCS, TESTS
from requirements import read_lines

AREAS = 5


def marked(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each argument of a requirement marker in a file, with where it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="requirement"), args=args):
                for arg in args:
                    yield ast.literal_eval(arg), f"{path.name}:{arg.lineno}"


def test_every_marker_names_a_line_of_the_page():
    known = {line.number for line in read_lines()}
    markers = [marker for path in TESTS.rglob("*.py") for marker in marked(path)]
    assert markers, "the search finds markers"
    assert [marker for marker in markers if marker[0] not in known] == []


def test_every_number_stands_once_and_each_area_counts_from_one():
    numbers = Counter(line.number for line in read_lines())
    assert [number for number, times in numbers.items() if times > 1] == []
    areas = Counter(number.partition(".")[0] for number in numbers)
    assert list(areas) == [f"S{area}" for area in range(AREAS)]
    assert list(numbers) == [f"{area}.{i}" for area, count in areas.items() for i in range(1, count + 1)]


def test_every_row_that_begins_with_a_number_is_read():
    page = (DOCS / "requirements.md").read_text(encoding="utf-8")
    assert len(read_lines()) == sum(row.startswith("| S") for row in page.splitlines())
