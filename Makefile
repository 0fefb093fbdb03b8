# `make demo` trains a model, `make test` runs every check, `make bench` the benchmarks; each sets itself up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COVERED := tests/engine tests/state tests/unit
# One more than there are cores, because some tests wait.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: demo test bench lint types unit pythons clean

# A stamp for each set of extras, newer than what describes them. Python compiles what is imported, when it is: that is
# a small part of what is installed.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# TensorFlow is some 600 MB, so pip says what it does.
$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "installing asyncfeed, TensorFlow and scikit-learn into $(VENV); this happens once, and takes minutes"
	$(BIN)/python -m pip install --no-compile --editable '.[demo]'
	@touch $@

# torch first, in a release with a build for machines without a GPU in its default index, where there is one.
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[bench]'
	@touch $@

demo: $(VENV)/.demo
	@echo "training a small model on 1,797 images of digits, read from one file each"
	@$(BIN)/python examples/digits.py

test: lint types unit pythons

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy checks the package. pyright, which many editors use, checks the file that shows how users write it.
types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# The coverage of the engine and the stages is measured by their own tests, but for the program that runs in worker
# processes. Coverage makes tests two to four times slower. TensorFlow, which takes seconds to import, runs in two
# processes.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(PROCESSES) -m "not tensorflow and not quiet and not wide" --cov --cov-report= $(COVERED)
	$(BIN)/coverage report --include='asyncfeed/stages/*,asyncfeed/engine/*' --omit='*/engine/processes/worker.py' --fail-under=95
	$(BIN)/python -m pytest -n $(PROCESSES) -m "not tensorflow and not quiet and not wide" $(COVERED:%=--ignore %)
	$(BIN)/python -m pytest -n $(PROCESSES) -m wide
	$(BIN)/python -m pytest -m quiet
	$(BIN)/python -m pytest -n 2 --dist loadfile -m tensorflow

# The core's tests, which need neither TensorFlow nor torch, on every other Python that this machine has.
pythons: $(VENV)/.dev
	.ci/pythons $(BIN)/python

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/work.py
	$(BIN)/python benchmarks/files.py
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
	rm -rf $(VENV) .venv-3.* .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
