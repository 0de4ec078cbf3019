# Everything runs in .venv, which is made with PYTHON on the first use and kept up to date with the requirements.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install --quiet
CORE := $(VENV)/.installed-core
TEST := $(VENV)/.installed-test

.PHONY: help install demo test lint type format black bench clean

help:
	@echo "make demo      a first run: a small dataset from a server on this machine, into demo_output/"
	@echo "make test      every test"
	@echo "make install   .venv with any2ds and what the tests need"
	@echo "make lint      style; make type: types; make format (or black): put the style right"
	@echo "make bench     benchmarks"
	@echo "make clean     remove .venv and whatever else was made"

install: $(TEST)

demo: $(CORE)
	$(RUN) examples/demo.py

test: $(TEST)
	$(RUN) -m pytest

lint: $(TEST)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

type: $(TEST)
	$(RUN) -m mypy

format black: $(TEST)
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .

bench: $(TEST)
	$(RUN) benchmarks/run.py

clean:
	rm -rf $(VENV) demo_output simple_output benchmarks/results.json build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find any2ds tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "any2ds needs Python 3.10 or later; $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	    echo "name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(CORE): requirements.txt setup.py any2ds/version.py | $(RUN)
	@echo "installing any2ds into $(VENV)"
	$(PIP) -r requirements.txt -e .
	@touch $@

$(TEST): requirements-test.txt $(CORE)
	@echo "installing what the tests need into $(VENV)"
	$(PIP) -r requirements-test.txt
	@touch $@
