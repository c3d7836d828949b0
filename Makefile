# Two commands do everything on a fresh machine: make run, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := $(VENV)/.bench
DOCS := $(VENV)/.docs

.PHONY: run test lint types memory memory-short bench bench-gpu docs clean

run: $(STAMP)
	$(BIN)/python examples/hybrid_node.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/pyright

memory: $(STAMP)
	$(BIN)/python benchmarks/memory.py

memory-short: $(STAMP)
	$(BIN)/python benchmarks/memory.py --gradients 1200

bench: $(BENCH)
	$(BIN)/python benchmarks/run.py

bench-gpu: $(BENCH)
	$(BIN)/python benchmarks/run.py --accelerator

docs: $(DOCS)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[plot,test,dev]"
	touch $@

$(BENCH): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	touch $@

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@
