# `make demo` trains a model, `make check` runs the quick checks, `make test` all checks, `make test-wide` the long
# searches, `make bench` the benchmarks. Each sets itself up.

PYTHON ?= python3
# Some machines set it. Without bytecode each process compiles what it imports: TensorFlow takes 10 s instead of 5.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
SELECTED := not tensorflow and not quiet and not wide
# What takes seconds, and the engine without worker processes and without what draws most.
CHECKED := tests/coordinator tests/queues tests/state tests/unit tests/test_architecture.py tests/engine \
	$(foreach name,*process* elastic* promises_together,--ignore-glob='tests/engine/test_$(name).py')
CORE := tests/engine tests/unit tests/formats tests/reading tests/servers tests/queues tests/coordinator tests/state
TENSORFLOW := tests/bridges tests/oracles tests/queues/test_tensorflow.py tests/test_demo.py tests/test_seeds.py \
	$(wildcard tests/test_docs_*.py)
SEARCH := 20
# One more than there are cores, because some tests wait.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: demo check test test-wide test-lowest test-newest bench lint types unit pythons clean

# A stamp for each set of extras, newer than what describes them. Python compiles what is imported, when it is: that is
# a small part of what is installed.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# TensorFlow is some 600 MB, so pip says what it does.
$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@if $(BIN)/python -m pip install --dry-run --no-deps tensorflow 2>&1 | grep -q "No matching distribution"; then \
		echo "the demo needs TensorFlow, which has no build for $$($(BIN)/python --version); with another Python: make clean demo PYTHON=python3.13"; \
		exit 1; \
	fi
	@echo "installing asyncfeed, TensorFlow and scikit-learn into $(VENV); this happens once, and takes minutes"
	$(BIN)/python -m pip install --no-compile --editable '.[demo]'
	@touch $@

# torch first: its newest release brings CUDA, which is several GB. For 2.13.0 the default index has a build without it.
# Where a Python is too new for either, `.ci/install` says what has no build.
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	-$(BIN)/python -m pip install --quiet --no-compile 'torch==2.13.0'
	$(BIN)/python .ci/install dev
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[bench]'
	@touch $@

demo: $(VENV)/.demo
	@echo "training a small model on 1,797 images of digits, read from one file each"
	@$(BIN)/python examples/digits.py

# What answers in two minutes, for the minute before each commit.
check: lint types
	$(BIN)/python -m pytest -q -n $(PROCESSES) --dist worksteal -m "$(SELECTED)" $(CHECKED)

# Everything that guards a promise, once.
test: lint types unit pythons

# Searches with SEARCH times as many cases, and the cases that a day's draw leaves out.
test-wide: $(VENV)/.dev
	ASYNCFEED_SEARCH=$(SEARCH) $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --timeout 3600 -m "not tensorflow and not quiet"
	ASYNCFEED_SEARCH=$(SEARCH) $(BIN)/python -m pytest -n 2 --dist loadfile --timeout 3600 -m tensorflow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy checks the package. pyright, which many editors use, checks the file that shows how users write it.
types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# Bridges apart: what they import takes seconds and a gigabyte in each process. TensorFlow runs in two processes.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(PROCESSES) --dist worksteal -m "$(SELECTED)" --ignore tests/bridges --ignore tests/oracles/test_tf_data.py
	$(BIN)/python -m pytest -q -n $(PROCESSES) --dist worksteal -m "$(SELECTED)" tests/bridges
	$(BIN)/python -m pytest -q -m quiet $(shell grep -rl 'mark\.quiet' tests)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "tensorflow and not wide" $(TENSORFLOW)

# The core's tests, which need neither TensorFlow nor torch, on every other Python that this machine has.
pythons: $(VENV)/.dev
	.ci/pythons $(BIN)/python

# The core's tests with the lowest versions of what `pyproject.toml` names.
test-lowest:
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[test]'
	.venv-lowest/bin/python -m pytest -n $(PROCESSES) --dist worksteal -m "$(SELECTED)" $(CORE)

# The tests of the core, torch, JAX and TensorFlow with the newest release of each, also with torch's build for CUDA.
test-newest:
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install --quiet --no-compile --upgrade --editable '.[dev]'
	.venv-newest/bin/python -m pytest -n $(PROCESSES) --dist worksteal -m "$(SELECTED)" $(CORE) tests/bridges
	.venv-newest/bin/python -m pytest -n 2 --dist loadfile -m "tensorflow and not wide" tests/bridges

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/work.py
	$(BIN)/python benchmarks/files.py
	$(BIN)/python benchmarks/ordinary.py
	$(BIN)/python benchmarks/usual.py
	$(BIN)/python benchmarks/queues.py
	$(BIN)/python benchmarks/legacy.py
	$(BIN)/python benchmarks/crossing.py
	$(BIN)/python benchmarks/images.py
	$(BIN)/python benchmarks/records.py
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/listing.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/figure.py

clean:
	rm -rf $(VENV) .venv-* .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
