PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# CoinRun's game, which runs beside numpy 2 although the extra's packages ask for numpy 1
GAME := "procgen-mirror==0.10.7; python_version < '3.13'" "procgen-gym==0.1.1; python_version >= '3.13'" \
  gym3==0.3.3 gym==0.26.2 gym-notices gymnasium farama-notifications cloudpickle cffi pycparser imageio

.PHONY: quickstart install test check nightly docs bench gpu race

quickstart: install
	$(BIN)/python -m oodbench.board quickstart

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/pip install --quiet --editable '.[tables]'
	touch $@

$(VENV)/tested: $(VENV)/installed
	$(BIN)/pip install --quiet --group dev --group docs
	$(BIN)/pip install --quiet --no-deps $(GAME)
	touch $@

# two processes of one thread each, which keep what they compile, whatever the shell says
test check nightly: export OMP_NUM_THREADS := 1
test check nightly: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/tested
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not nightly"

check: $(VENV)/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 20 -m "not nightly"

# what takes long and seldom breaks: full grids, the wheel, torture, the types of the tests; .ci/run
# deals a few of them
nightly: $(VENV)/tested
	$(BIN)/mypy oodbench algorithms datasets tests
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 20 -m nightly

$(VENV)/documented: $(VENV)/installed
	$(BIN)/pip install --quiet --group docs
	touch $@

# the site, in docs/_build/html; a warning is an error. A notebook runs again when its code changes, all do
# after `rm -r docs/_build/notebooks`
docs: $(VENV)/documented
	$(BIN)/python -m sphinx --jobs auto --fail-on-warning --keep-going --quiet docs docs/_build/html

bench: $(VENV)/tested
	$(BIN)/python -m tests.bench

# on one GPU, in under ten minutes: its tests, rows and a sweep, written to docs/findings/gpu.md
gpu: $(VENV)/tested
	$(BIN)/python -m tests.bench.gpu

# DOMAINBED: a checkout to race against; DOMAINBED_PYTHON: a Python that has what it imports
race: $(VENV)/installed
	$(BIN)/python -m tests.bench.race $(if $(DOMAINBED),--domainbed $(DOMAINBED)) \
	  $(if $(DOMAINBED_PYTHON),--python $(DOMAINBED_PYTHON))
