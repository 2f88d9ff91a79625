# Roundelay.  `make` alone lists the targets.  Needs Python 3.11 or newer and pip; everything else
# is installed into .venv from requirements.lock.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check lint types layers test coverage seeds demo swarm chaos chaos-api explore mutants bench \
  faults proofs cluster-test format lock clean

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed

# What can be set from outside: make swarm SEEDS=0:100 JOBS=4, make test PYTEST="-k token -x"
PYTHON ?=
SEEDS ?= 0:50000
JOBS ?= 2
WORKERS ?= 4 # of pytest: live tests mostly wait
PROTOCOL ?= token
RUNS ?= 20
MINUTES ?= 30
SEED ?= 0
PYTEST ?=

PIP := $(PY) -m pip --disable-pip-version-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ------------------------------------------------------------------------------------- set-up

setup: $(INSTALLED) ## make .venv from requirements.lock (nothing to do the second time)

$(LOCKED): requirements.lock
	@python=''; \
	for candidate in "$(PYTHON)" python3.11 python3 python3.14 python3.13 python3.12 python; do \
	  if [ -n "$$candidate" ] && "$$candidate" -c \
	    'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'make setup: needs Python 3.11 or newer; none of python3.11, python3, python3.12 to' \
	    'python3.14 and python is.  Install one, or name it: make setup PYTHON=/path/to/python' >&2; \
	  exit 1; \
	fi; \
	echo "setup: $(VENV) with $$("$$python" -V)"; \
	"$$python" -m venv --clear $(VENV)
	@echo 'setup: packages of requirements.lock (a minute or so)'
	@$(PIP) -qq install --require-hashes --requirement requirements.lock
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	@$(PIP) -qq install --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## write requirements.lock anew from pyproject.toml (newest versions)
	@rm -rf build/lock && mkdir -p build
	@$(or $(PYTHON),python3) -m venv build/lock
	@build/lock/bin/python -m pip --disable-pip-version-check --quiet install uv
	UV_CUSTOM_COMPILE_COMMAND='make lock' build/lock/bin/uv pip compile pyproject.toml \
	  --all-extras --universal --python-version 3.11 --upgrade --generate-hashes \
	  --no-emit-index-url --no-annotate --quiet --output-file requirements.lock
	@rm -rf build/lock

# ------------------------------------------------------------------------------------- checks

check: lint types layers ## style, types and the layering rule

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(INSTALLED)
	$(PY) -m mypy

layers: $(INSTALLED)
	$(BIN)/lint-imports --no-logo

format: $(INSTALLED) ## put the code into shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# ------------------------------------------------------------------------------------- tests

test: check ## all checks, all tests, branch coverage of the core, 2,000 swarm seeds
	@$(MAKE) --no-print-directory coverage
	@$(MAKE) --no-print-directory seeds

seeds: $(INSTALLED)
	$(BIN)/roundelay swarm --seeds 0:2000 --jobs $(JOBS)
	$(BIN)/roundelay swarm --profile fast --seeds 0:200 --jobs $(JOBS)
	@for protocol in to to-channel po spo autorm grsb wide; do \
	  $(BIN)/roundelay swarm --protocol $$protocol --seeds 0:100 --jobs $(JOBS) || exit 1; \
	done

coverage: $(INSTALLED)
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -n $(WORKERS) $(PYTEST)
	$(PY) -m coverage combine --quiet
	@mkdir -p build
	$(PY) -m coverage json --quiet -o build/coverage.json
	$(PY) tools/core_coverage.py build/coverage.json

# ------------------------------------------------------------------------------------- to watch

demo: $(INSTALLED) ## five processes, loss, and a kill of the one that holds the token
	$(BIN)/roundelay demo

swarm: $(INSTALLED) ## random runs under faults; SEEDS=A:B, JOBS=N, PROTOCOL=P; then chaos
	$(BIN)/roundelay swarm --seeds $(SEEDS) --jobs $(JOBS) --protocol $(PROTOCOL)
	@$(MAKE) --no-print-directory chaos

chaos: $(INSTALLED) ## real processes under faults; RUNS=N
	$(BIN)/roundelay chaos --seed 0 --runs $(RUNS)

chaos-api: $(INSTALLED) ## applications of every service under faults, judged by their logs; MINUTES=N, SEED=S
	$(BIN)/roundelay chaos --api --seed $(SEED) --minutes $(MINUTES)

explore: $(INSTALLED) ## every reachable state of small groups
	$(BIN)/roundelay explore --sites 3 --resilience 0 --timestamps 3 --crashes 1
	$(BIN)/roundelay explore --sites 3 --resilience 1 --timestamps 3 --crashes 1
	$(BIN)/roundelay explore --sites 3 --timestamps 2 --crashes 1 --attempts 1 --to-source
	$(BIN)/roundelay explore --protocol po --sites 3 --messages 1 --losses 1
	$(BIN)/roundelay explore --protocol to-channel --sites 2 --messages 2 --losses 2
	$(BIN)/roundelay explore --protocol spo --sites 2 --messages 2 --losses 2

mutants: $(INSTALLED) ## every rule switched off in turn: is the right promise reported broken? JOBS=N
	$(BIN)/roundelay mutants --jobs $(JOBS)

bench: $(INSTALLED) ## speed of simulator, engines, live groups, journal, recorder and Spark (long)
	$(PY) -m bench.simulator
	$(PY) -m bench.engine
	$(PY) -m bench.processor
	$(PY) -m bench.throughput
	$(PY) -m bench.journal
	$(PY) -m bench.recorder
	$(PY) -m bench.wide
	$(PY) -m bench.sweep
	$(PY) -m bench.source
	$(PY) -m bench.verify

failover: $(INSTALLED) ## how long a group stands still when a member is killed (long)
	$(PY) -m bench.failover --kills 50
	$(PY) -m bench.failover --kills 50 --load
	$(PY) -m bench.failover --members 5 --soak 600 --load

faults: $(INSTALLED) ## every one-bit flip of a journal's segment, 200 kills of a recorder
	$(PY) -m tools.journal_faults flips
	$(PY) -m tools.journal_faults kills

proofs: $(INSTALLED) ## verify: planted faults are found, live runs of every service are clean
	$(PY) -m bench.verify --faults
	$(PY) -m bench.verify --live

cluster-test: $(INSTALLED) ## sweep, verify, reconcile and a stream on a Spark master and two workers
	$(PY) -m tools.cluster_test

clean: ## remove .venv and everything generated, but not runs/
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f .coverage .coverage.*
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
