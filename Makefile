# `make demo` runs the main job on a fresh machine; `make test` passes the tests, and `make test-all` those that take
# longer, too; `make check` lints, and checks types and which way imports point.
PYTHON ?= python3
VENV   ?= .venv
LINES  ?= 1000000
MUTANTS ?= /tmp/acktree-mutants.sqlite
JOBS   ?= 2
# Tests wait for Kafka and Spark as much as they work.
TEST_JOBS ?= $(shell expr $$(nproc) + 3)
# The slow ones work all the time, most of them with a Spark, brokers and workers of their own.
SLOW_JOBS ?= $(shell expr $$(nproc) + 1)
# What `make test` may take, user and system time of all of its processes, counted for a machine of a certain speed (see
# tests/run.py); with CI set, a run that takes more fails. The goal is 750; two runs of nearly the same code counted 805
# and 837.
CPU_BUDGET_S := 900
BIN    := $(VENV)/bin
# Bytecode is kept, else each process of a run compiles all modules it imports.
PYTHON_RUN := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python
PYTEST := $(PYTHON_RUN) tests/run.py --numprocesses=$(TEST_JOBS) --dist=loadgroup -rs --durations=15

# What Python can only warn of: a coroutine that was never awaited, what was never closed, an error nobody saw.
STRICT := -W error:coroutine:RuntimeWarning -W error::ResourceWarning \
    -W error::pytest.PytestUnraisableExceptionWarning -W error::pytest.PytestUnhandledThreadExceptionWarning

SEEDS  ?= 1500
CORE_SEEDS ?= 100000

.PHONY: demo test test-fast test-slow test-benches simulate cores test-all test-spark-matrix check mutate check-containers check-upgrade lock docs package env clean

env: $(VENV)/.warm

# One environment that grows: what the demo needs, what the tests need, what linting needs. pip would compile every
# module of every package, which takes longer than the rest; the demo's first process compiles the few it imports.
$(VENV)/.%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$*]'
	touch $@

# Modules, loops and tests compiled once: else each of the tests' processes would compile them at its start.
$(VENV)/.warm: $(VENV)/.test
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib
	$(PYTHON_RUN) tests/warm_up.py
	-$(PYTHON_RUN) -m pytest --collect-only -qq > /dev/null
	touch $@

demo: $(VENV)/.demo
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/acktree demo --lines $(LINES)

test: $(VENV)/.warm
	$(PYTEST) $(STRICT) --left-behind --cpu-budget $(CPU_BUDGET_S) -m 'not slow and not bench'

# What to run while editing: pure and simulated tests, without a JVM.
test-fast: $(VENV)/.warm
	$(PYTEST) $(STRICT) --left-behind -m 'not slow and not bench and not broker and not spark and not jvm'

# Every command behind a figure of the docs, in its smallest form.
test-benches: $(VENV)/.warm
	$(PYTEST) -m bench --numprocesses=1

# What holds on which Spark: one environment for each version, some minutes each; writes the table of docs/spark.md.
test-spark-matrix: $(VENV)/.warm
	$(BIN)/python tests/spark_matrix.py --docs

# What `make test` leaves out, the properties with more examples, and on a real Kafka what it runs on the simulated one.
test-slow: $(VENV)/.warm
	ACKTREE_TEST_REAL_KAFKA=1 HYPOTHESIS_PROFILE=full $(PYTEST) --numprocesses=$(SLOW_JOBS) \
	    -m 'slow or hypothesis or (simulated and broker and not real)'

# Whole systems under random faults, in virtual time: so many seeds, on all cores.
simulate: $(VENV)/.warm
	$(BIN)/python tests/simulation/run.py --seeds $(SEEDS)

# Each pure core alone against its model: so many short random scripts, on all cores.
cores: $(VENV)/.warm
	$(BIN)/python tests/cores/run.py --seeds $(CORE_SEEDS)

test-all: test test-slow test-benches simulate cores

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

# The files to publish, built as anybody would build them from the sources, and checked.
package: $(VENV)/.package
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python -m zipfile --list dist/*.whl | grep 'dist-info/sboms/acktree.cdx.json' > /dev/null

# Without --quiet: it would hide the warnings that --strict counts.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

# Builds the image and runs docker/compose.yaml with podman; tests/containers/check.py says what it needs.
check-containers: $(VENV)/.dev
	LINES=$(if $(filter file,$(origin LINES)),20000,$(LINES)) BASE=$(BASE) $(BIN)/python tests/containers/check.py

# Replaces each role of an earlier version (BASE, as git names it) by this one and back, under load: about five minutes.
check-upgrade: env
	$(BIN)/python tests/upgrade/check.py --base $(BASE)

# What the image installs, each package with the hashes of its files; from pyproject.toml, on any Python it allows.
lock: $(VENV)/.dev
	$(BIN)/python docker/requirements.py pyproject.toml acker spark-fast ui | $(BIN)/uv pip compile --quiet --upgrade \
	    --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --custom-compile-command 'make lock' --output-file docker/requirements.lock -

# Half an hour on two idle cores. An interrupted run goes on, unless a mutated source has changed since.
mutate: $(MUTANTS) | $(VENV)/.test
	$(BIN)/python tests/acker/mutate.py $(MUTANTS) mutation.toml $(JOBS)

$(MUTANTS): mutation.toml $(wildcard acker_consumer/acktree/acker/folding/*.py acker_consumer/acktree/acker/kernels/*.py) | $(VENV)/.test
	$(BIN)/python -m pip install --quiet 'cosmic-ray>=8.7'
	rm -f $@.new
	$(BIN)/cosmic-ray init mutation.toml $@.new
	$(BIN)/cr-filter-operators $@.new mutation.toml
	mv $@.new $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
