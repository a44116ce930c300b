"""Prints which test proves which line of docs/en/requirements.md; run by `make requirements`.

Exit code 1: a marker names a line that is not there, or, with --strict, a built line has no test. If the tests cannot
be collected, the exit code is pytest's.
"""

import argparse
import contextlib
import io
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import places
import pytest

ROOT = places.ROOT
PAGE = ROOT / "docs" / "en" / "requirements.md"
ROW = re.compile(r"\| (S\d+\.\d+) \| (.+) \| (.+) \|")
PROMISE_WIDTH = 64

Tests = dict[str, list[str]]
"""By the number of a line, the tests that name it."""


class Line(NamedTuple):
    """One line of the page."""

    number: str
    promise: str
    where: str

    @property
    def is_built(self) -> bool:
        """Whether the promise is kept already."""
        return not self.where.startswith("planned")


class Markers:
    """A pytest plugin that notes the requirement markers of every collected test."""

    def __init__(self) -> None:
        """Start with none."""
        self.tests: Tests = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note them; the cases of a parametrised test count as one."""
        for item in session.items:
            test = item.nodeid.partition("[")[0]
            for marker in item.iter_markers("requirement"):
                for number in marker.args:
                    if test not in self.tests[number]:
                        self.tests[number].append(test)


def read_lines(page: Path = PAGE) -> list[Line]:
    """Read the lines of the page, in its order."""
    rows = map(ROW.fullmatch, page.read_text(encoding="utf-8").splitlines())
    return [Line(*row.groups()) for row in rows if row]


def collect(tests: Path) -> tuple[int, Tests, str]:
    """Collect the suite without running it: pytest's exit code, the tests by line, and what pytest printed."""
    markers, printed = Markers(), io.StringIO()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", str(tests)]
    with contextlib.redirect_stdout(printed):
        code = pytest.main(options, plugins=[markers])
    return int(code), markers.tests, printed.getvalue()


def table(lines: Iterable[Line], tests: Tests) -> Iterator[str]:
    """Yield the rows of a table: number, promise, tests that name it."""
    for line in lines:
        named = tests.get(line.number, [])
        standing = [] if named and line.is_built else ["no test" if line.is_built else "planned"]
        columns = [line.number], textwrap.wrap(line.promise, PROMISE_WIDTH), standing + named
        for cells in zip_longest(*columns, fillvalue=""):
            yield f"{cells[0]:<6}  {cells[1]:<{PROMISE_WIDTH}}  {cells[2]}".rstrip()


def untested(lines: Iterable[Line], tests: Tests) -> list[Line]:
    """Return the built lines that no test names."""
    return [line for line in lines if line.is_built and line.number not in tests]


def unknown(lines: Iterable[Line], tests: Tests) -> Tests:
    """Return the tests that name lines which are not on the page."""
    known = {line.number for line in lines}
    return {number: named for number, named in tests.items() if number not in known}


def main(arguments: list[str] | None = None) -> int:
    """Print the table and what is amiss; return the exit code."""
    parser = argparse.ArgumentParser(description="Print which test proves which line of docs/en/requirements.md.")
    parser.add_argument("--strict", action="store_true", help="fail if a built line has no test")
    given = parser.parse_args(arguments)
    code, tests, printed = collect(ROOT / "tests")
    if code:
        print(printed, end="")
        return code
    lines = read_lines()
    missing, wrong = untested(lines, tests), unknown(lines, tests)
    print(*table(lines, tests), sep="\n")
    built = sum(line.is_built for line in lines)
    print(f"\n{len(lines)} lines, {built} built, {len(missing)} of these named by no test")
    for line in missing:
        print(f"  {line.number:<6}  {line.promise}")
    for number, named in wrong.items():
        print(f"{', '.join(named)}: names {number}, which is no line of docs/en/requirements.md", file=sys.stderr)
    return int(bool(wrong) or (given.strict and bool(missing)))


if __name__ == "__main__":
    sys.exit(main())
