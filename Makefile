# relmo: every command a contributor needs. `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tests run in so many processes of one thread each.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit check long processors bench docs clean

help:  ## List the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Make .venv and install relmo with all that its tests need

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/relmo/model/kernels/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## See what relmo does, in a minute
	$(BIN)/relmo demo

test: check  ## Everything that CI runs: the checks, then all tests

unit: $(STAMP)  ## The quick tests only
	$(PYTEST) -m 'not slow'

check: $(STAMP)  ## Format, lint, types, imports, tests (without the C kernel, then with it)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	RELMO_KERNEL=off $(PYTEST) -m "not slow" tests/model tests/inference tests/vectors/test_bulk.py tests/test_parity.py
	$(PYTEST)

long: processors  ## Hours by hand: kills, fuzzing, more examples, other processors, all tests three times
	$(BIN)/python -m pytest -m long --timeout 0
	$(PYTEST) -m 'not slow' --hypothesis-profile long --timeout 3600
	for round in 1 2 3; do $(PYTEST) || exit 1; done

processors: $(STAMP)  ## Run the tests of numbers as other processors would
	$(BIN)/python scripts/processors.py --workers $(WORKERS)

bench: $(STAMP)  ## Run the benchmarks (by hand: they want a quiet machine)
	$(BIN)/python benchmarks/embed.py
	$(BIN)/python benchmarks/pretrain.py

docs: $(STAMP)  ## Write docs/reference/ and the tables of results anew, and build the site
	$(BIN)/python scripts/cli_reference.py
	$(BIN)/python scripts/python_reference.py
	$(BIN)/python scripts/results_tables.py
	$(BIN)/mkdocs build --strict

clean:  ## Remove the virtual environment and everything built
	rm -rf $(VENV) site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
