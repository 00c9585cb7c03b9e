# `make demo` and `make test` work on a fresh machine: each makes its own virtual environment
# when there is none, and installs again only when setup.cfg or pyproject.toml has changed.
# Another interpreter: `make test PYTHON=python3.12`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

export TF_CPP_MIN_LOG_LEVEL := 3

.PHONY: demo check test test-trieste tutorials-trieste test-report fuzz lint types format tutorials docs site release benchmark clean help
.DELETE_ON_ERROR:

help:
	@echo "make demo        fit the model to the paper's two-task data, print and draw what it learned"
	@echo "make check       lint, types and the fast tests"
	@echo "make test        lint, types and all tests"
	@echo "make test-trieste  what needs Trieste, in an environment of its own with TensorFlow 2.18"
	@echo "make test-report the report in Chromium, which must be installed"
	@echo "make fuzz        fit random data sets, and check what must hold: EXAMPLES=100 SEED=0 JOBS=2"
	@echo "make lint        ruff, without changing a file"
	@echo "make types       mypy"
	@echo "make format      let ruff sort imports and format the code"
	@echo "make tutorials   run every tutorial and write its notebook"
	@echo "make tutorials-trieste  the same for those that need Trieste, with its environment"
	@echo "make docs        run every tutorial and build the site: build/site/index.html"
	@echo "make site        build the site from the notebooks in tutorials/, and run none"
	@echo "make release     build sdist and wheel, and try the wheel in a fresh environment"
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

# Trieste needs an older TensorFlow, so that it has an environment of its own.
TRIESTE := $(VENV)-trieste

$(TRIESTE)/.installed: $(REQUIREMENTS)
	$(PYTHON) -m venv $(TRIESTE)
	@echo "Installing gpflow_cool[trieste] into $(TRIESTE): takes minutes, TensorFlow is large."
	@$(TRIESTE)/bin/python -m pip install --quiet --editable ".[trieste]" pytest ipykernel
	@touch $@

test-trieste: $(TRIESTE)/.installed
	OPENBLAS_NUM_THREADS=1 $(TRIESTE)/bin/python -m pytest tests/trieste -o norecursedirs=

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

# Notebooks are executed into docs/tutorials/, by `make tutorials` or `make docs`, whichever comes
# first, and again when the script or the package has changed.
EXECUTED := $(patsubst tutorials/%.py,docs/tutorials/%.ipynb,$(wildcard tutorials/*.py))
PACKAGE := $(shell find gpflow_cool -name '*.py')

docs/tutorials/%.ipynb: tutorials/%.py $(PACKAGE) | $(VENV)/.installed-docs
	@echo "== $<"
	@$(BIN)/python -m jupytext --quiet --set-kernel python3 --to ipynb --execute --output $@ $<
	@$(BIN)/python docs/tidy_notebook.py $@

# Tutorials that need Trieste are executed with its environment, by `make tutorials-trieste`. The site
# takes the notebook that is kept in tutorials/, so that it needs no second TensorFlow.
NEED_TRIESTE := $(shell grep -l 'import trieste\|from trieste' tutorials/*.py)

$(NEED_TRIESTE:tutorials/%.py=docs/tutorials/%.ipynb): docs/tutorials/%.ipynb: tutorials/%.ipynb
	cp $< $@

tutorials-trieste: $(TRIESTE)/.installed | $(VENV)/.installed-docs
	$(TRIESTE)/bin/python -m ipykernel install --prefix $(VENV) --name trieste --display-name Trieste
	@for script in $(NEED_TRIESTE); do echo "== $$script"; \
	  $(BIN)/python -m jupytext --quiet --set-kernel trieste --to ipynb --execute $$script && \
	  $(BIN)/python docs/tidy_notebook.py $${script%.py}.ipynb || exit 1; done

tutorials: $(EXECUTED)
	cp $(filter-out $(NEED_TRIESTE:tutorials/%.py=docs/tutorials/%.ipynb),$(EXECUTED)) tutorials/

# Strict: a warning of Sphinx, a dead link, or anything that is fetched from elsewhere is an error.
define BUILD_SITE
@rm -rf build/site $(filter-out $(EXECUTED),$(wildcard docs/tutorials/*.ipynb))
$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env -b html docs build/site
$(BIN)/python docs/check_site.py build/site
endef

docs: $(EXECUTED)
	$(BUILD_SITE)

# The notebooks as they are kept in tutorials/, dated back, so that `make docs` still executes them.
site: $(VENV)/.installed-docs
	@cp $(EXECUTED:docs/%=%) docs/tutorials/
	@touch -t 200001010000 $(EXECUTED)
	$(BUILD_SITE)

release: $(VENV)/.installed-release
	@rm -rf build/lib dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	.ci/try-wheel dist/*.whl

benchmark: $(VENV)/.installed-benchmark
	@for script in $(wildcard benchmarks/*.py); do \
	  echo "== $$script"; $(BIN)/python $$script || exit 1; done
	@echo "== benchmarks.peers"; $(BIN)/python -m benchmarks.peers

clean:
	rm -rf build dist docs/api docs/tutorials/*.ipynb docs/tutorials/pictures *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find gpflow_cool tests -name __pycache__ -type d -prune -exec rm -rf {} +
