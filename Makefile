# Everything runs in .venv, which is made with PYTHON on the first use and kept up to date with the requirements.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := -m pip --disable-pip-version-check install --quiet
PIP := $(RUN) $(INSTALL)
# setuptools writes into this folder when it installs it: of environments that make -j fills, one at a time does.
ALONE := $(if $(shell command -v flock),flock setup.py)
CORE := $(VENV)/.installed-core
DEMO := $(VENV)/.installed-demo
TEST := $(VENV)/.installed-test
PACKAGE := requirements.txt setup.py pyproject.toml any2ds/core/version.py

# Tests start thousands of processes, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Where datasets are read with other people's libraries: .venv-reading for tests/reading, and for what clashes with others
# or is as big as all of them .venv-X for tests/reading/with_X, each with requirements of that name.
READING := .venv-reading $(patsubst tests/reading/with_%,.venv-%,$(wildcard tests/reading/with_*))
# Microsoft's emulator of Azure's store, for tests/reading/test_azure.py: 360 MB, where there is npm.
AZURITE := 3.37.0
# Other libraries and tools of the benchmarks, beside those of the tests: .venv-X with benchmarks/requirements/X.txt.
PEERS := $(patsubst benchmarks/requirements/%.txt,.venv-%,$(wildcard benchmarks/requirements/*.txt))
# any2dataset is in no package index: the folder of a clone.
ANY2DATASET ?=
# Spark, Ray and Beam, of which the tests in tests/cluster start real ones on this machine.
CLUSTER := .venv-cluster
# Of the slow tests, those in tests/cluster and those in tests/reading: part PART of PARTS, from 0; all of them otherwise.
# The last two go by environments, since these take as long to install as their tests to run: one for each of nine parts,
# of which tests/cluster has four.
PARTS ?= 1
PART ?= 0
TODAY := $(shell printf '%s\n' $(READING) $(CLUSTER)/0 $(CLUSTER)/1 $(CLUSTER)/2 $(CLUSTER)/3 | awk 'NR % $(PARTS) == $(PART)')
NEEDED := $(filter $(READING),$(TODAY))
QUARTERS := $(notdir $(filter $(CLUSTER)/%,$(TODAY)))
CHOSEN := $(if $(filter .venv-reading,$(NEEDED)),$(sort $(wildcard tests/reading/test_*.py))) \
    $(sort $(foreach environment,$(NEEDED),$(wildcard $(environment:.venv-%=tests/reading/with_%)/test_*.py)))

.PHONY: help install environments demo test test-part test-bare test-full test-slow test-reading test-cluster lint type stubs docs smoke format black bench bench-quick bench-environments crash fuzz clean

help:
	@echo "make demo      a first run: a small dataset from a server on this machine, into demo_output/"
	@echo "make test      the tests, in some minutes"
	@echo "make test-full every test: slow ones, clusters, and reading with others' libraries; an hour"
	@echo "make test-slow PARTS=9 PART=0   a part of the slow ones; PARTS and PART go with the next two, and bench-quick"
	@echo "make test-reading   datasets read with DuckDB, Spark, TensorFlow and others: 3 GB to install, Python 3.11 or later"
	@echo "make test-cluster   Spark, Ray and Beam on this machine: 1 GB to install, Java 17"
	@echo "make test-bare what a newcomer runs, with nothing but Python, make, git and a compiler in the PATH"
	@echo "make install   .venv with any2ds and what the tests need"
	@echo "make lint      style; make type: types; make format (or black): put the style right"
	@echo "make docs      the documentation site, into docs/build"
	@echo "make stubs     any2ds/__init__.pyi and docs/failure-codes.md, from what is declared"
	@echo "make smoke     wheel and sdist, installed into clean environments and tried"
	@echo "make bench     benchmarks, into benchmarks/results; make bench-quick only tries whether they run"
	@echo "make crash     runs that are killed, into full disks and failing stores too; half an hour"
	@echo "make fuzz      20 000 damaged files of every kind through the steps; a quarter of an hour"
	@echo "make clean     remove .venv and whatever else was made"

# All of them start clusters of two cores: no more than two at a time.
test-cluster: $(if $(QUARTERS),$(CLUSTER)/.installed)
	$(if $(QUARTERS),$(CLUSTER)/bin/python -m pytest -n 2 --dist loadfile --max-worker-restart=0 -o faulthandler_timeout=900 --part=$(if $(word 2,$(QUARTERS)),0/1,$(QUARTERS)/4) $(PYTEST_FLAGS) tests/cluster)

install: $(TEST)

# Whatever docs, test-part, test-cluster and test-reading need: make -j3 fills three at a time.
environments: $(TEST) .venv-docs/.installed $(if $(QUARTERS),$(CLUSTER)/.installed) $(NEEDED:=/.installed)

demo: $(DEMO)
	$(RUN) examples/demo.py

test: $(TEST)
	$(RUN) -m pytest -m "not slow" -n auto --dist loadfile --max-worker-restart=0 $(PYTEST_FLAGS)

# What a newcomer runs, on a machine with Python, make, git, a compiler and what every system has in its PATH: all tests
# are collected, and those run that start programs (tests/support/programs.py), which are not there.
BARE := $(CURDIR)/$(VENV)/bare
BARE_PROGRAMS := $(PYTHON) make git gcc cc sh bash awk basename cat chmod cp cut date dd dirname du echo env expr false \
    find grep gzip head id ln ls mkdir mktemp mv printf pwd readlink rm rmdir sed sleep sort stat tail tar tee test touch \
    tr true uname uniq wc xargs
AS_NEWCOMER = env -i HOME=$(BARE)/home PATH=$(BARE)/bin

test-bare: $(TEST)
	rm -rf $(BARE) && mkdir -p $(BARE)/bin $(BARE)/home
	$(RUN) -c "import os, shutil, sys; [os.symlink(shutil.which(name), '$(BARE)/bin/' + name) for name in sys.argv[1:]]" \
	    $(BARE_PROGRAMS)
	$(AS_NEWCOMER) make demo
	$(AS_NEWCOMER) $(RUN) -m pytest -m "not slow" --collect-only -qq
	$(AS_NEWCOMER) $(RUN) -m pytest -m "not slow" -n 2 --dist loadfile $(PYTEST_FLAGS) \
	    $$(grep -rlE 'tests\.support\.(programs|sftp|browser)' tests --include='test_*.py' --exclude-dir=reading --exclude-dir=cluster)

test-slow: $(TEST)
	$(RUN) -m pytest -m slow --part=$(PART)/$(PARTS) -n auto --dist loadfile --max-worker-restart=0 $(PYTEST_FLAGS)

# What CI runs of these two, in one go: all of the first, and of the second part PART of PARTS, and with SINCE="6 hours ago"
# those of the others that commits since then have touched.
test-part: $(TEST)
	$(RUN) -m pytest --part=$(PART)/$(PARTS) $(if $(SINCE),--changed-since="$(SINCE)") -n auto --dist loadfile --max-worker-restart=0 $(PYTEST_FLAGS)

test-full: test test-slow test-cluster test-reading

# Each file in a process of its own: what one library does to a process (threads, a JVM, fork) is not the next one's.
test-reading: $(NEEDED:=/.installed)
	@status=0; \
	for file in $(CHOSEN); do \
	    echo $$file; \
	    folder=$$(basename $$(dirname $$file)); \
	    .venv-$${folder#with_}/bin/python -m pytest -q -o faulthandler_timeout=600 $$file || status=1; \
	done; \
	exit $$status

lint: $(TEST)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

type: $(TEST)
	$(RUN) -m mypy

format black: $(TEST)
	$(RUN) -m ruff check --fix-only .
	$(RUN) -m ruff format .

# The types of the public functions, for editors and type checkers; the page on failure codes.
stubs: $(TEST)
	$(RUN) tools/stubs.py
	$(RUN) tools/failure_codes.py

# A release as a user gets it.
smoke: | $(RUN)
	$(RUN) tools/smoke.py

# The site, into docs/build: a warning, such as one of a link that leads nowhere, is an error.
docs: .venv-docs/.installed
	.venv-docs/bin/python -m sphinx -W --keep-going -q -b html docs docs/build
	@echo "docs/build/index.html"

# What every file passes through; `make bench CASES="peers messy"` measures others. python -m benchmarks lists all of them.
CASES ?= bare processes hanging hostile interrupt fsync start end images

bench: $(TEST)
	$(RUN) -m benchmarks $(CASES)

# Not for its figures: whether the benchmarks still run, where their libraries are installed. Each is in one part of PARTS.
bench-quick: $(TEST)
	$(RUN) -m benchmarks --quick --part=$(PART)/$(PARTS) --results=$(VENV)/bench-quick

# The environments of other tools and loaders: some GB.
bench-environments: $(TEST) $(PEERS:=/.installed) $(NEEDED:=/.installed) .venv-img2dataset/.installed

crash: $(TEST)
	$(RUN) -m tests.support.crash --seeds=50
	$(RUN) -m tests.support.crash --seeds=10 --on=disk,s3
	$(RUN) -m tests.support.crash --seeds=5 --on=folder,s3 --two

fuzz: $(TEST)
	$(RUN) -m tests.support.fuzz --cases=20000

clean:
	rm -rf $(VENV) $(READING) $(PEERS) $(CLUSTER) .venv-docs docs/build docs/made demo_output simple_output cifar_output grain_output jax_output build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find any2ds tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(RUN) $(READING:=/bin/python) $(PEERS:=/bin/python) $(CLUSTER)/bin/python .venv-docs/bin/python: %/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "any2ds needs Python 3.10 or later; $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	    echo "name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }

$(CORE): $(PACKAGE) | $(RUN)
	@echo "installing any2ds into $(VENV)"
	$(ALONE) $(PIP) -e ".[https]"  # https: aiohttp, which the test server is made of
	@touch $@

$(DEMO): $(CORE)
	@echo "installing what the demo needs for images, sound and video into $(VENV)"
	$(ALONE) $(PIP) -e ".[https,media]"
	@touch $@

$(TEST): requirements-test.txt $(CORE)
	@echo "installing what the tests need into $(VENV)"
	$(PIP) --no-compile -r requirements-test.txt  # a minute less: tests import, and so compile, a small part of it
	@touch $@ $(DEMO)  # which has what the demo needs

$(READING:=/.installed) $(CLUSTER)/.installed .venv-docs/.installed: .venv-%/.installed: requirements-%.txt $(PACKAGE) | .venv-%/bin/python
	@echo "installing libraries for tests into .venv-$*; this takes some minutes"
	.venv-$*/bin/python $(INSTALL) --no-compile -r $<  # of which tests import a small part
	$(if $(filter reading,$*),$(if $(shell command -v npm),npm install --silent --no-audit --no-fund --ignore-scripts --prefix .venv-$* azurite@$(AZURITE)))
	$(ALONE) .venv-$*/bin/python $(INSTALL) -e .
	@touch $@

$(PEERS:=/.installed): .venv-%/.installed: benchmarks/requirements/%.txt $(PACKAGE) | .venv-%/bin/python
	@echo "installing libraries for benchmarks into .venv-$*; this takes some minutes"
	@test $* != any2dataset -o -n "$(ANY2DATASET)" || { \
	    echo "any2dataset is in no package index: make $@ ANY2DATASET=folder-of-a-clone" >&2; exit 1; }
	.venv-$*/bin/python $(INSTALL) --no-compile -r $<
	$(if $(filter any2dataset,$*),.venv-$*/bin/python $(INSTALL) --no-deps $(ANY2DATASET))
	@touch $@
