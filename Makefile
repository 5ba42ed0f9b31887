# Works with plain python3, pip and make. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test check format bench clean

# the core alone: what a user installs
.venv/.core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

# everything that the tests need; torch first and pinned, so that nothing else pulls a larger build
.venv/.dev: .venv/.core pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

demo: .venv/.core
	$(BIN)/unsoftmax recover demo --out demo

test: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

check: test

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv demo
