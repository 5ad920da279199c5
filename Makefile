# make train   a byte-level GPT learns from this machine's own Python library
# make test    the quick suite        make prove   the long suites, resumable
# make check   format, lint, types, layers, sizes, the docs' code

PYTHON ?= python3
N ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install -c constraints.txt

# One thread a process: tests and workers share the cores, they do not fight for them.
export OMP_NUM_THREADS ?= 1

.PHONY: help train test prove check setup setup-dev clean

help:
	@sed -n 's/^# make/make/p' Makefile

train: .venv/.placet-installed
	$(BIN)/placet train char_gpt -n $(N) $(ARGS)

# Tests of the emulated cluster run alone and in turn, as they measure bytes and rates; the
# rest shares the cores. Both halves run even if the first fails.
ALONE := lab or gpu
# A half of what ARGS names may be empty (exit code 5 of pytest).
NONE := { [ $$? -eq 5 ] && [ -n "$(ARGS)" ]; }
PYTEST := $(BIN)/pytest -q -rs --ignore tests/project/test_docs_code.py

test: .venv/.dev-installed
	@status=0; \
	$(PYTEST) -n 2 -m "not prove and not ($(ALONE))" $(ARGS) || $(NONE) || status=1; \
	$(PYTEST) -m "not prove and ($(ALONE))" $(ARGS) || $(NONE) || status=1; \
	exit $$status

prove: .venv/.dev-installed
	$(BIN)/python -m bench.prove $(ARGS)

check: .venv/.dev-installed
	./check

setup: .venv/.placet-installed

setup-dev: .venv/.dev-installed

# A stamp a step, so that set-up runs once, and again only when its input changes.
.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "placet needs Python 3.11 or newer; $(PYTHON) is not." \
	         "Name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	    echo "$(PYTHON) cannot make virtual environments." \
	         "On Debian: apt install python3-venv" >&2; exit 1; }
	@echo "Making .venv (once)"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.placet-installed: .venv/.made pyproject.toml constraints.txt
	@echo "Installing placet and its pinned dependencies (once; torch alone is some 100 MB)"
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable .
	@touch $@

.venv/.dev-installed: .venv/.placet-installed
	@echo "Installing the test tools"
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
