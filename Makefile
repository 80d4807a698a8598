PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart install test check bench

quickstart: install
	$(BIN)/python -m oodbench.sweep launch quickstart --yes

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/tested: $(VENV)/installed
	$(BIN)/pip install --quiet --group dev
	touch $@

test: $(VENV)/tested
	$(BIN)/python -m pytest -n 2

check: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/installed
	$(BIN)/python -m oodbench.bench
