"""What README, CONTRIBUTING and the docs name is there: files and what stands in them, tests, commands, flags, keys."""

import contextlib
import dataclasses
import io
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
from places import DOCS, ROOT, TESTS

import ludus
from ludus.cli.main import VERBS, main
from ludus.training.config import help_text

SOURCE = ROOT / "src" / "ludus"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
FOLDERS = {"benchmarks", "docs", "examples", "tests", "src"}
EXAMPLES = {
    "my_module.py",
    "walks.py",
    "gymnax_envs.py",
    "site/",
    ".pytest_cache/xla",
    "training/presets/ENVIRONMENT/NAME.yaml",
    "src/ludus/training/presets/ENVIRONMENT/NAME.yaml",
    "ddpg.py",
}
"""What a page tells its reader to write, or what a command makes."""
OF_THE_REPOSITORY = {"CONTRIBUTING.md", "architecture.md", "requirements.md"}
"""Pages where every name with a slash is a file or folder of the repository."""
INSIDE = re.compile(r"`(\w+)` in `([\w./]+\.py)`")
INSIDE_OF = re.compile(r"`([\w./]+\.py)`, (?:method|function|class|table) `(\w+)`")


@cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def quoted(page: Path) -> list[str]:
    """What a page sets in backticks, but for its blocks of code and what other people's source files are called."""
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^\| source there.*?\n\n", "", prose, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def commands(page: Path) -> list[str]:
    """Every command line of ours, in backticks or in a block."""
    blocks = "\n".join(re.findall(r"^```(?:bash)?\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE))
    lines = [line.split("  #")[0].removeprefix(".venv/bin/") for line in blocks.splitlines()]
    return [line for line in (*quoted(page), *lines) if re.match(r"(ludus|make) [a-z]", line)]


def is_file_of_ours(name: str) -> bool:
    places = (ROOT, SOURCE, ROOT / "docs" / "en", ROOT / "benchmarks")
    return any((place / name).exists() for place in places) or any(SOURCE.rglob(name)) or any(TESTS.rglob(name))


def paths(page: Path) -> list[str]:
    """Files and folders of the repository that a page names."""
    names = [name for name in quoted(page) if re.fullmatch(r"[\w.-]+(/[\w.*-]+)*/?", name)]
    whole = [name for name in names if name.endswith(".py") or name.split("/")[0] in FOLDERS]
    if page.name in OF_THE_REPOSITORY:
        whole += [name for name in names if "/" in name]
    return [name for name in whole if name not in EXAMPLES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    assert [name for name in paths(page) if not is_file_of_ours(name)] == []


def test_what_is_said_to_be_in_a_file_is_there():
    named = [match for page in PAGES for match in INSIDE.findall(text(page))]
    named += [(name, file) for page in PAGES for file, name in INSIDE_OF.findall(text(page))]
    assert len(named) > 5
    for name, file in named:
        source = next(place / file for place in (SOURCE, ROOT) if (place / file).exists())
        assert re.search(rf"\b{name}\b", text(source)), (name, file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_exist(page):
    defined = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", text(path))}
    assert [name for name in quoted(page) if re.fullmatch(r"test_\w+", name) and name not in defined] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "mlflow.md"], ids=lambda page: page.name)
def test_names_of_the_package_exist(page):
    """MLflow's page quotes tags that look like names of the package."""
    for name in quoted(page):
        if match := re.match(r"(ludus(?:\.\w+)+)(\(|$)", name):
            assert pkgutil.resolve_name(match[1]) is not None, name


@cache
def help_of(verb: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([verb, "--help"])
    return out.getvalue() + "--help"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_flags_exist(page):
    targets = set(re.findall(r"^([a-z]+):", text(ROOT / "Makefile"), re.MULTILINE))
    for command in commands(page):
        program, *words = command.split()
        if program == "make":
            assert set(words) <= targets, command
        else:
            assert words[0] in VERBS, command
            flags = [word.partition("=")[0] for word in words[1:] if re.match(r"--\w", word)]
            assert not [flag for flag in flags if flag not in help_of(words[0])], command


def keys_of(algorithm: type) -> set[str]:
    return {f"algorithm.{field.name}" for field in dataclasses.fields(algorithm)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_exist(page):
    known = {line.split()[0] for line in help_text().splitlines() if line.startswith("  ")}
    known |= keys_of(ludus.PPO) | keys_of(ludus.SAC) | {"preset", "algorithm/network"}
    groups = {key.partition(".")[0] for key in known if "." in key}
    words = [word for name in quoted(page) for word in name.split()]
    for key in (match[1] for word in words if (match := re.match(r"([a-z]\w*(?:\.(?!py\b)\w+)+)(?:=|$)", word))):
        if key.partition(".")[0] in groups - {"env_options"}:
            assert key in known or key.startswith("algorithm.network.") or key == "algorithm.my_field", key
