# `make demo` runs the main job on a fresh machine; `make test` passes the tests; `make check` lints and types.
PYTHON ?= python3
VENV   ?= .venv
LINES  ?= all
BIN    := $(VENV)/bin

.PHONY: demo test check env clean

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

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
