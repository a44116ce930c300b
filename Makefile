# Everything a user or a contributor runs. Nothing here needs root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install train check test lint docs requirements lock

help:  ## Show what there is.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## Make the environment in .venv and install ludus into it.

$(VENV)/.installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ludus needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

train: install  ## Train PPO on CartPole-v1 and say what it reached.
	$(BIN)/ludus train env=CartPole-v1

# The pins are complete, so pip has nothing to look for: hence without dependencies everywhere. (With them, pip takes a
# newer release of a package that another one asks for with extras, and then refuses it.)
# PyTorch has another build for each kind of machine: hence without hashes.
$(VENV)/.tests: requirements-dev.txt requirements-gymnax.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-gymnax.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	touch $@

check: lint  ## Lint, types and the fast tests: what to run while you work.
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow"

test: $(VENV)/.tests $(VENV)/.docs  ## Install what the tests need and run them all.
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -ra

lint: $(VENV)/.tests  ## Check style and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ty check src

$(VENV)/.docs: requirements-docs.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-docs.txt
	touch $@

docs: $(VENV)/.docs  ## Build the docs site into site/.
	docs/site_assets.sh
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

requirements: $(VENV)/.tests  ## Show which founding requirement is proven by which tests.
	$(BIN)/python tests/support/requirements.py

lock:  ## Pin all dependencies anew (needs uv).
	uv pip compile pyproject.toml --universal --generate-hashes --no-header --no-annotate -q -o requirements.txt
	uv pip compile pyproject.toml --group test --group lint --universal --generate-hashes --no-header --no-annotate -q -o requirements-dev.txt
	uv pip compile --group docs -c requirements-dev.txt --universal --generate-hashes --no-header --no-annotate -q -o requirements-docs.txt
	printf 'gymnax==1.0.1\npandas\nseaborn\nsix\n' | uv pip compile - --no-deps --universal --generate-hashes --no-header --no-annotate -q -o requirements-gymnax.txt
