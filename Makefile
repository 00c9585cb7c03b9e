# `make demo` and `make test` work on a fresh machine: each makes its own virtual environment
# when there is none, and installs again only when setup.cfg or pyproject.toml has changed.
# Another interpreter: `make test PYTHON=python3.12`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

export TF_CPP_MIN_LOG_LEVEL := 3

.PHONY: demo check test test-report fuzz lint types format tutorials benchmark clean help
.DELETE_ON_ERROR:

help:
	@echo "make demo        fit the model to the paper's two-task data, print and draw what it learned"
	@echo "make check       lint, types and the fast tests"
	@echo "make test        lint, types and all tests"
	@echo "make test-report the report in Chromium, which must be installed"
	@echo "make fuzz        fit random data sets, and check what must hold: EXAMPLES=100 SEED=0 JOBS=2"
	@echo "make lint        ruff, without changing a file"
	@echo "make types       mypy"
	@echo "make format      let ruff sort imports and format the code"
	@echo "make tutorials   run every tutorial and write its notebook"
	@echo "make benchmark   run every benchmark, that beside other packages last: hours"
	@echo "make clean       remove caches and build products"

# --- the virtual environment, and one stamp for each set of requirements --------------------

$(BIN)/python:
	@$(PYTHON) -c "import sys; v = sys.version_info; sys.exit(None if (3, 10) <= v < (3, 13) else \
	  'Python 3.10 to 3.12 is needed, $(PYTHON) is %d.%d: try PYTHON=python3.12' % v[:2])"
	$(PYTHON) -m venv $(VENV)

REQUIREMENTS := setup.cfg pyproject.toml

$(VENV)/.installed: $(REQUIREMENTS) | $(BIN)/python
	@echo "Installing gpflow_cool into $(VENV): the first time takes minutes, TensorFlow is large."
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-%: $(REQUIREMENTS) | $(BIN)/python
	@echo "Installing gpflow_cool[$*] into $(VENV): the first time takes minutes, TensorFlow is large."
	@$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

# --- what one does with it ---------------------------------------------------------------------

demo: $(VENV)/.installed
	@$(BIN)/python -m gpflow_cool demo

# Two workers with one thread of linear algebra each: more would wait for each other.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: lint types
	$(PYTEST) -m "not slow"

test: lint types
	$(PYTEST)

# Needs Chromium (apt install chromium).
test-report: $(VENV)/.installed-test
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/browser/check_report.py

# Prints a reproduction of every violation, and ends with 1 if there is one. About 2 s per example.
EXAMPLES ?= 100
SEED ?= 0
JOBS ?= 2
fuzz: $(VENV)/.installed-test
	OPENBLAS_NUM_THREADS=1 PYTHONPATH=.:tests $(BIN)/python -m properties.fuzz \
	  --examples $(EXAMPLES) --seed $(SEED) --jobs $(JOBS)

lint: $(VENV)/.installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/python -m mypy

format: $(VENV)/.installed-test
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

tutorials: $(VENV)/.installed-docs
	@cd tutorials && for script in *.py; do echo "== $$script"; \
	  $(abspath $(BIN))/python -m jupytext --quiet --set-kernel python3 --to ipynb --execute $$script \
	  && $(abspath $(BIN))/python ../docs/tidy_notebook.py $${script%.py}.ipynb || exit 1; done

benchmark: $(VENV)/.installed-benchmark
	@for script in $(wildcard benchmarks/*.py); do \
	  echo "== $$script"; $(BIN)/python $$script || exit 1; done
	@echo "== benchmarks.peers"; $(BIN)/python -m benchmarks.peers

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find gpflow_cool tests -name __pycache__ -type d -prune -exec rm -rf {} +
