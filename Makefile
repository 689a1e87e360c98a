# The commands of a working day; .ci/run calls the same targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Tests start hundreds of processes, each of which would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# More for pytest, for example: make test PYTEST_ARGS="-x tests/unit"
PYTEST_ARGS ?=
# One more than there are cores, because tests also wait; each has a Spark and database servers of its own, some 5 GB.
TEST_PROCESSES ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); room=$$(($$(getconf _PHYS_PAGES) / 1024 * $$(getconf PAGE_SIZE) / (5 << 20))); \
	wanted=$$((cores + 1 < room ? cores + 1 : room)); echo $$((wanted > 2 ? wanted : 2)))
PYTEST_DEFAULT = $(BIN)/pytest -n $(TEST_PROCESSES) --dist loadgroup --no-loadscope-reorder -m "not matrix and not soak and not bench"
# What `make demo` replicates to: delta, bigquery or duckdb.
SOURCE ?= postgresql
TARGET ?= delta
# What `make test-matrix` runs; nothing stands for all that is not known to be green.
PARTS ?=
# What `make test-threads` runs, and when its threads yield.
THREADED ?= tests/simulation tests/unit/apply tests/unit/capture tests/unit/journal tests/unit/runtime tests/unit/state tests/unit/verify
SEED ?= 1
# More for make mutants, for example: make mutants MUTANTS_ARGS="--layers fast"
MUTANTS_ARGS ?=
# How long each part of `make bench-long` measures.
MINUTES ?= 60

.PHONY: help setup demo test test-fast test-servers test-lake test-walks test-matrix test-threads test-certain mutants durations check format bench bench-long docs lock clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup:  ## Create .venv with the host and every plugin; quick to repeat (PYTHON=… chooses the interpreter)
	@PYTHON="$(PYTHON)" tools/setup.sh

demo:  ## Replicate a live database, kill -9 half-way, compare (SOURCE=mysql: from MySQL or MariaDB; TARGET=bigquery: to an emulator, TARGET=duckdb: to a file, without Java)
	@PYTHON="$(PYTHON)" tools/setup.sh $(if $(filter postgresql,$(SOURCE)),--without-servers)
	@$(BIN)/replicator demo --source $(SOURCE) --target $(TARGET)

test: setup  ## Run the tests that are not of the matrix, in all layers; ends with pytest's summary
	@$(PYTEST_DEFAULT) $(PYTEST_ARGS)

test-fast: setup  ## Only those that need no server and no JVM
	@$(PYTEST_DEFAULT) --layer fast $(PYTEST_ARGS)

test-servers: setup  ## Only those against database servers
	@$(PYTEST_DEFAULT) --layer servers $(PYTEST_ARGS)

test-lake: setup  ## Only those of targets: Delta, Spark, BigQuery's emulator, DuckDB
	@$(PYTEST_DEFAULT) --layer lake $(PYTEST_ARGS)

test-walks: setup  ## Only those that use the product from outside, and kill it
	@$(PYTEST_DEFAULT) --layer walks $(PYTEST_ARGS)

check: setup  ## Lint, format, types (of the tests too), layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

format: setup  ## Let ruff fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup  ## Run the benchmarks; prints the figures of docs/performance.md
	@$(BIN)/python -m benchmarks

bench-long: setup  ## Run the product for an hour in each of two parts, each under 90 minutes (MINUTES=5 shortens the hour)
	@$(BIN)/python -m benchmarks hour --minutes $(MINUTES) --output .benchmarks/hour
	@$(BIN)/python -m benchmarks hour_tables --minutes $(MINUTES) --output .benchmarks/hour_tables

durations: setup  ## Measure what the tests of make test cost, for tests/durations.json (PYTEST_ARGS=FILE measures a file)
	@rm -rf .durations && REPLICATOR_TEST_DURATIONS=.durations $(PYTEST_DEFAULT) $(PYTEST_ARGS)
	@$(BIN)/python tools/costs.py .durations

test-matrix: setup  ## Run everything that make test leaves out: hours; continues where it ended (PARTS='tests/faults/* versions/*' chooses)
	@$(BIN)/python tools/matrix.py $(PARTS)

test-threads: setup  ## Run tests of threads with threads that yield at random (SEED=7 chooses when)
	@$(PYTEST_DEFAULT) --yield-at-random $(SEED) $(THREADED) $(PYTEST_ARGS)

test-certain: setup  ## Run make test until ten runs in a row had no failure, five of them next to a load; adds to tests/certain.jsonl
	@$(BIN)/python tools/certain.py

mutants: setup  ## Change the product in 120 spots, one by one, and see which test notices: hours; continues where it ended, adds to tests/mutants.jsonl
	@$(BIN)/python tools/mutants.py $(MUTANTS_ARGS)

docs: setup  ## Write the generated pages, then check that the docs agree with the code and that their examples run
	@$(BIN)/python -m replicator.plugins.reference docs/configuration.md
	@$(BIN)/python -m replicator.cli.reference docs/cli.md
	@$(BIN)/python -m replicator.service.schemas docs
	@$(BIN)/python -m replicator.plugins.errors docs/errors.md replicator_testing.memory.rules
	@$(BIN)/pytest tests/docs $(PYTEST_ARGS)

lock: setup  ## Resolve requirements.lock again (LOCK_ARGS="--upgrade" for newer versions)
	@tools/lock.sh $(LOCK_ARGS)

clean:  ## Remove .venv and every cache; nothing outside the repository
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
