"""The mistakes that `benchmarks/mutants.py` puts into the code can still be made there."""

import importlib.util

import pytest
from places import ROOT


def mistakes():
    spec = importlib.util.spec_from_file_location("mistakes", ROOT / "benchmarks" / "mistakes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


@pytest.mark.parametrize("mutant", mistakes(), ids=lambda mutant: f"{mutant.file}: {mutant.mistake}")
def test_the_text_that_a_mistake_replaces_is_there_exactly_once(mutant):
    assert (ROOT / "src" / "ludus" / mutant.file).read_text().count(mutant.old) == 1
    assert all((ROOT / path.partition("::")[0]).exists() for path in mutant.tests)
