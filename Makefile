# `make help` lists what there is. Everything runs in .venv, which `install` makes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-all check tutorial docs pictures dist dist-check wheel bench bench-memory lock clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

install: $(READY)  ## make .venv with fedmcc, its extras and all tools

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)

demo: $(READY)  ## cluster handwritten digits, a few minutes
	$(BIN)/fedmcc demo

# The tests of a file stay in one process and in order: those of a federation continue each other.
# With CHECKED=1, the types and shapes of all arguments and results are checked, which takes half as long again.
TEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
ifdef CHECKED
TEST += --jaxtyping-packages=fedmcc,beartype.beartype
endif

test: $(READY)  ## run all tests, 8 minutes
	$(TEST)

test-fast: $(READY)  ## run units and contracts, without tests that train whole runs or start processes
	$(TEST) -m "not slow"

test-all: $(READY)  ## run all tests with checked types and more fuzzing, and the tutorial, half an hour
	FEDMCC_FUZZ=1000 $(MAKE) test CHECKED=1
	$(MAKE) tutorial

check: $(READY)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > .venv/layers.txt || (cat .venv/layers.txt; exit 1)

tutorial:  ## run docs/tutorial.md as written, in a new environment; about a quarter of an hour
	$(PYTHON) tests/fresh_tutorial.py

docs: $(READY)  ## build the documentation as a website, in site/
	$(BIN)/mkdocs build --strict --quiet

pictures: $(READY)  ## draw the pictures of the documentation anew; needs Chromium
	$(BIN)/python docs/pictures.py

dist: wheel  ## build wheel and sdist, and try the wheel with each extra in a new environment
	$(BIN)/python tests/fresh_install.py

dist-check: wheel  ## the same with one extra
	$(BIN)/python tests/fresh_install.py serve

wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m build > .venv/build.txt || (cat .venv/build.txt; exit 1)
	$(BIN)/twine check --strict dist/*

bench: $(READY)  ## measure speed, as ratios within one run, into results/benchmarks.md
	$(BIN)/python benchmarks/all.py

bench-memory: $(READY)  ## measure peak memory against the batch size, takes longest
	$(BIN)/python benchmarks/memory.py

lock:  ## choose versions anew and write requirements.lock (torch stays at its pin)
	rm -rf .venv && $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "torch==$$(sed -n 's/^torch==//p' requirements.lock)"
	$(BIN)/pip install --quiet --editable ".[bench,dev,dicom,docs,export,figures,flower,heic,parquet,photos,pretrained,privacy,raw,serve,simulation,tensorboard,tiff]"
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements.lock
	@touch $(READY)

clean:  ## remove .venv, site and caches
	rm -rf .venv dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
