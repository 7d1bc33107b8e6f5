# holdfast: what a person types. Everything happens inside .venv, from locked and hashed requirements.
# PYTHON=/path/to/python picks another interpreter (3.10 or newer) for a fresh .venv; K='-k lease' narrows the tests.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# No question is ever asked, and no source distribution is ever built: each locked package has a wheel. The locks are whole, so pip
# resolves nothing (--no-deps): its resolver would refuse them on the day that a package with an extra has a newer release.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL := scripts/three_tries.sh $(PIP) install --quiet --require-hashes --no-deps --only-binary :all:
LOCKS_RUN := -r requirements/runtime.txt -r requirements/build.txt -r requirements/examples.txt
LOCKS_DEV := -r requirements/dev.txt
# What the tests of the training library meet. Torch has builds for every kind of device: TORCH=... names another one, TORCH=skip
# leaves it and the frameworks out, and the tests that need them are skipped.
TORCH ?= torch==2.13.0
LOCKS_FRAMEWORKS := -r requirements/frameworks.txt
K :=
RUN_TESTS := $(BIN)/python scripts/run_tests.py --apart=tests/training --apart=tests/examples
# `make test-all SEED=7` repeats that order and those examples; without a number one is drawn and printed.
SEED :=

export PYTHON TORCH
# What `make check` compiles, three workers of `make test` would each compile again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo check lint format types layers spelling documents tiers test test-all bench other-kernels soak fix requirements gotchas lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

$(VENV)/.made: | scripts/make_venv.sh
	@scripts/make_venv.sh $(VENV)
	@touch $@

# What running needs: the runtime, the build tool (for the editable install) and what the examples import.
$(VENV)/.run: $(VENV)/.made requirements/runtime.txt requirements/build.txt requirements/examples.txt pyproject.toml
	@echo "setup: installing the locked requirements into $(VENV)"
	@$(INSTALL) $(LOCKS_RUN)
	@$(PIP) install --quiet --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "setup: installing the locked development requirements into $(VENV)"
	@$(INSTALL) $(LOCKS_DEV)
	@touch $@

$(VENV)/.frameworks: $(VENV)/.dev requirements/frameworks.txt
	@if [ "$(TORCH)" = skip ]; then \
	  echo "setup: torch and the frameworks are left out (TORCH=skip)"; \
	else \
	  echo "setup: installing $(TORCH) and the locked frameworks into $(VENV)"; \
	  scripts/three_tries.sh $(PIP) install --quiet --only-binary :all: "$(TORCH)"; \
	  $(INSTALL) $(LOCKS_FRAMEWORKS); \
	  touch $@; \
	fi

$(VENV)/.system: $(VENV)/.made scripts/system-packages.txt scripts/install_system_packages.sh
	@scripts/install_system_packages.sh
	@if [ "$${SYSTEM_PACKAGES:-install}" != skip ]; then touch $@; fi

setup: $(VENV)/.frameworks ## make .venv with everything that checks and tests import

demo: $(VENV)/.run ## a small network learns handwritten digits; then again, killed in the middle: the same weights
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/digits/kill_and_resume.py

check: lint format types layers spelling documents tiers ## lint, format, types, layers, spelling, documents, the number of tests (`make -k check`: all of them)

lint: $(VENV)/.dev
	$(BIN)/ruff check --quiet .

format: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .

types: $(VENV)/.frameworks
	$(BIN)/mypy --no-error-summary

layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python scripts/check_imports.py --check

spelling: $(VENV)/.dev
	$(BIN)/typos

documents: $(VENV)/.dev
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python scripts/generate_lifecycle.py --check
	$(BIN)/python scripts/requirements_coverage.py --strict --quiet
	$(BIN)/python scripts/gotchas.py --quiet

tiers: $(VENV)/.frameworks
	$(BIN)/python scripts/count_tests.py

test: $(VENV)/.frameworks $(VENV)/.system ## install what the tests need, system packages too, and run all but the slow ones: 5 minutes on two cores
	$(RUN_TESTS) --hang=700 -m "not (slow or soak or cluster)" $(K)

test-all: $(VENV)/.frameworks $(VENV)/.system ## all tests but `soak`, in another order with other examples each time (SEED=7: as that time)
	TEST_BUDGET=full $(RUN_TESTS) --seed=$(SEED) -m "not soak" $(K)

bench: $(VENV)/.frameworks ## measure, with peers side by side
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/training.py --install
	$(BIN)/python benchmarks/diagnosis.py

# Failures that say what a mode lacks (a status that only a pidfd keeps, a lock that only one copies) are to be read.
OTHER := tests/host/process tests/host/job tests/host/contain tests/host/gpu tests/agent/test_*.py tests/agent/supervise tests/agent/control tests/agent/view
other-kernels: $(VENV)/.frameworks $(VENV)/.system ## tests of host and agent without pidfds, and with a Python that does not name them
	@failed=0; for mode in pidfd-enosys pidfd-eperm; do echo $$mode; \
	$(BIN)/python tests/other_kernels.py $$mode $(BIN)/python -m pytest -q -m "process and not (slow or soak or cluster)" $(OTHER) $(K) </dev/null || failed=$$?; done; \
	$(BIN)/python tests/other_kernels.py old-headers -m pytest -q -m "process and not (slow or soak or cluster)" $(OTHER) $(K) </dev/null || failed=$$?; exit $$failed

# A verdict tells of neighbours that use the cores: the faults have the box for themselves.
soak: $(VENV)/.frameworks $(VENV)/.system ## the long tests; each fault of the table for real, one after another, then the others side by side
	@failed=0; $(RUN_TESTS) --hang=8000 -n 1 -m soak tests/faults $(K) || failed=$$?; [ $$failed != 5 ] || failed=0; \
	$(RUN_TESTS) --hang=8000 -m soak --ignore=tests/faults $(K) || failed=$$?; exit $$failed

fix: $(VENV)/.dev ## let ruff repair and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

gotchas: ## list every gotcha of the catalogue: what is done about it, how many tests show it
	@$${PYTHON:-python3} scripts/gotchas.py

requirements: ## list every requirement with its state and tests, and the shares of the whole
	@$${PYTHON:-python3} scripts/requirements_coverage.py

lock: ## write the lock files anew (needs uv)
	@scripts/lock.sh

clean: ## remove .venv and caches
	rm -rf -- $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist .coverage htmlcov
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf -- {} +
