# Two commands do everything on a fresh machine: make run, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALLED := $(VENV)/.installed
BENCH := $(VENV)/.bench
DOCS := $(VENV)/.docs

.PHONY: run examples test lint types memory memory-short bench bench-gpu docs clean

run: $(INSTALLED)
	$(BIN)/python examples/hybrid_node.py

examples: $(INSTALLED)
	set -e; for story in examples/*.py; do echo "== $$story"; $(BIN)/python $$story; done

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 tests

lint: $(INSTALLED)
	$(BIN)/ruff check .

# the installed layout, by links: a type checker does not see setuptools' mapping of folders to packages
types: $(INSTALLED)
	rm -rf out/types
	mkdir -p out/types/hybridax
	ln -s $(addprefix ../../../,adjoint models solvers $(wildcard hybridax/*.py)) out/types/hybridax/
	$(BIN)/pyright

memory: $(INSTALLED)
	$(BIN)/python benchmarks/memory.py

memory-short: $(INSTALLED)
	$(BIN)/python benchmarks/memory.py --gradients 1200

bench: $(BENCH)
	$(BIN)/python benchmarks/run.py

bench-gpu: $(BENCH)
	$(BIN)/python benchmarks/run.py --quick

docs: $(DOCS)
	$(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[plot,test,dev]"
	touch $@

$(BENCH): $(INSTALLED)
	$(PIP) -e ".[bench]"
	touch $@

$(DOCS): $(INSTALLED)
	$(PIP) -e ".[docs]"
	touch $@
