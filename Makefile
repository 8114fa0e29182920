# Everything here works on a machine with Python 3.11+, make and a package index.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

QUICK  := tests/core tests/wire tests/config tests/test_public.py --ignore=tests/core/test_linear_patterns.py

OTHERS := --ignore=tests/core --ignore=tests/wire

# Tests start hundreds of processes: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test lint types quick unit again torture audit bench docs lock clean
PART   ?=
LOCK   := uv pip compile --quiet --no-strip-extras --universal --python-version 3.11 --generate-hashes --no-header

help: ## what can be done
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(READY): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Everthread needs Python 3.11 or newer; this is %s. Set PYTHON=..." % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## a long session past a small window; no key, fetches a small model (98 MB) once
	$(BIN)/python -m examples.demo

check: lint types quick ## a minute: lint, types, the tests without processes and servers

test: $(READY) ## everything that must pass; lint and types beside the first tests
	$(MAKE) --no-print-directory -j 2 lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

quick: $(READY)
	$(BIN)/pytest -q -n 2 --hypothesis-profile=quick $(QUICK)

unit: $(READY)
	$(BIN)/pytest -n 2 --cov --cov-report= tests/core tests/wire
	$(BIN)/coverage report --fail-under=100
	$(BIN)/pytest -n 4 --dist worksteal $(OTHERS) || $(MAKE) --no-print-directory again  # they wait more than they reckon

again: ## run the tests that failed once more, one at a time; only a failure that repeats counts
	@echo "Some tests failed beside others. Running them alone; one that passes now depends on timing: mend it."
	$(BIN)/pytest --last-failed --last-failed-no-failures none $(OTHERS)

torture: $(READY) ## the long runs, or one: PART=store; each writes build/torture/PART.json and goes on where it ended
	$(BIN)/python -m tests.torture $(PART)

audit: $(READY) ## bandit over the code, pip-audit over every pinned dependency (asks PyPI for known faults)
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet bandit pip-audit
	$(VENV)/audit/bin/bandit --quiet --recursive --configfile pyproject.toml src
	$(VENV)/audit/bin/pip-audit --requirement requirements/dev.lock --disable-pip

docs: $(READY) ## write the generated pages
	$(BIN)/python docs/generate.py

bench: $(READY) ## side-by-side measurements, written to benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks --out benchmarks/RESULTS.md

lock: ## pin every dependency, with hashes (needs uv on the PATH)
	$(LOCK) --group dev --extra models pyproject.toml -o requirements/dev.lock
	$(LOCK) --group build -c requirements/dev.lock -o requirements/build.lock
	$(LOCK) --extra models --extra postgres --extra mcp -c requirements/dev.lock pyproject.toml -o requirements/gateway.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
