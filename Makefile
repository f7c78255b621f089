# Each target works by itself on a machine that has only Python and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo cluster test test-long chaos sim mutants check bench audit-100m docs clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable .
	touch $@

$(VENV)/installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[dev,spark,iceberg,delta]'
	touch $(VENV)/installed $@

demo: $(VENV)/installed            ## run a node, publish, consume, kill it, show nothing is lost
	PATH="$(CURDIR)/$(BIN):$$PATH" bash tools/demo.sh

cluster: $(VENV)/installed         ## run three nodes on this machine until Ctrl-C
	$(BIN)/python tools/cluster.py

test: $(VENV)/installed-dev        ## every test but the long ones
	$(BIN)/python -m pytest -m "not long" -n auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

test-long: $(VENV)/installed-dev   ## every test, the long variants too
	$(BIN)/python -m pytest --hypothesis-profile=long

chaos: $(VENV)/installed-dev      ## half an hour of faults on a cluster under load
	$(BIN)/python -m tests.process.chaos --minutes 30

sim: $(VENV)/installed-dev        ## whole clusters under faults in simulated time, until Ctrl-C
	$(BIN)/python -m tests.sim

mutants: $(VENV)/installed-dev    ## 200 random faults in the source: do the nearest tests notice?
	nice -n 10 $(BIN)/python tools/mutants.py

check: $(VENV)/installed-dev       ## style, types, layers, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/unasync.py --check
	$(BIN)/python tools/cli_docs.py --check
	$(BIN)/python tools/delivery_doc.py --check

docs: $(VENV)/installed-dev        ## make the generated files anew
	$(BIN)/python tools/unasync.py
	$(BIN)/python tools/cli_docs.py
	$(BIN)/python tools/delivery_doc.py

bench: $(VENV)/installed           ## measure this machine; see docs/benchmarks.md
	$(BIN)/pip install --quiet --no-compile --editable '.[bench]'
	$(BIN)/python -m bench

audit-100m: $(VENV)/installed-dev  ## publish, consume, export and audit 100 million messages; 60 GB of disk
	$(BIN)/python -m bench.pipeline.audit --messages 100000000

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
