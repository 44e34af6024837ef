# Two commands matter: `make up` runs it, `make test` tests it. Both install what they need first.

UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
BIN := .venv/bin

.PHONY: help install up test check format bench clean

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 12

install: .venv/.installed  ## everything needed, into .venv

.venv/.installed: pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --quiet --all-extras
	@touch $@

.tools/bin/uv:
	python3 -m venv .tools
	.tools/bin/pip install --quiet uv

up: install  ## run the broker with demo traffic until Ctrl-C
	$(BIN)/queen up --demo

test: install  ## all tests
	$(BIN)/pytest --numprocesses 2 --no-loadscope-reorder

check: install  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/mypy

format: install  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/async_to_sync.py

bench: install  ## the quick form of every benchmark, with the peers they compare to
	$(UV) sync --frozen --quiet --all-extras --group bench
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file --quick || exit 1; done

clean:  ## remove what was installed and built
	rm -rf .venv .tools dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
