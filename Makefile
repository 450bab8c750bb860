# `make demo` runs the main job on a fresh machine; `make test` passes the tests; `make check` lints and types.
PYTHON ?= python3
VENV   ?= .venv
LINES  ?= all
MUTANTS ?= /tmp/acktree-mutants.sqlite
JOBS   ?= 2
BIN    := $(VENV)/bin

.PHONY: demo test check mutate check-containers docs env clean

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: env
	$(BIN)/acktree demo --lines $(LINES)

test: env
	$(BIN)/python -m pytest

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Without --quiet: it would hide the warnings that --strict counts.
docs: env
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

# Builds the image and runs docker/compose.yaml with podman; tests/containers/check.py says what it needs.
check-containers: env
	LINES=$(if $(filter all,$(LINES)),20000,$(LINES)) BASE=$(BASE) $(BIN)/python tests/containers/check.py

# Half an hour on two idle cores. An interrupted run goes on, unless a mutated source has changed since.
mutate: $(MUTANTS)
	$(BIN)/python tests/acker/mutate.py $(MUTANTS) mutation.toml $(JOBS)

$(MUTANTS): mutation.toml $(wildcard acker_consumer/acktree/acker/*.py acker_consumer/acktree/acker/kernels/*.py) | env
	$(BIN)/python -m pip install --quiet 'cosmic-ray>=8.7'
	rm -f $@.new
	$(BIN)/cosmic-ray init mutation.toml $@.new
	$(BIN)/cr-filter-operators $@.new mutation.toml
	mv $@.new $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
