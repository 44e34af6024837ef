# Two commands matter: `make up` runs it, `make test` tests it. Both install what they need first.

UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
BIN := .venv/bin
BUILT := src/queenstream/broker/static/index.html

.PHONY: help install servers console up test spark-versions check format bench docs dist clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 16

install: .venv/.installed console  ## everything needed, into .venv; the console, into the package

.venv/.installed: pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --quiet --all-extras
	@touch $@

.tools/bin/uv:
	python3 -m venv .tools
	.tools/bin/pip install --quiet uv

servers: install  ## the servers and the browser of the tests, into the cache folder; lists all that is missing
	@$(BIN)/python -m tests.servers

console: $(BUILT)  ## the web console, built from console/ (needs Node.js)

$(BUILT): console/package-lock.json console/index.html $(shell find console/src console/public console/*.ts console/*.js -type f)
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory console/node_modules/.installed && cd console && npm run --silent build; \
	else echo "The console is not built: there is no npm. Install Node.js 20.19 or newer, then: make console. The broker works without it."; fi

console/node_modules/.installed: console/package-lock.json
	cd console && npm ci --silent
	@touch $@

up: install  ## run the broker with demo traffic until Ctrl-C
	$(BIN)/queen up --demo

test: install servers  ## all tests
	$(BIN)/pytest --numprocesses 2 --no-loadscope-reorder

spark-versions: install servers  ## the tests of Spark on every supported version, with the oldest and newest pandas and pyarrow
	$(BIN)/python tools/spark_versions.py

check: install  ## lint, format, types, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/mypy
	@if [ -d console/node_modules ]; then cd console && npm run --silent check; else echo "console/ is not checked: there is no npm"; fi
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/audit.py

format: install  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/async_to_sync.py

bench: install  ## the quick form of every benchmark, with the peers they compare to, as a page: build/benchmarks.html
	$(UV) sync --frozen --quiet --all-extras --group bench
	$(BIN)/python tools/bench_report.py

docs: install  ## the documentation as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html is there; with search: $(BIN)/python -m http.server -d site"

dist: install  ## a wheel with everything in it and its software bill of materials, into dist/
	@test -f $(BUILT) || { echo "The console is not built, and a wheel without it is not whole. Install Node.js, then: make dist"; exit 1; }
	$(UV) build --quiet --wheel --out-dir dist
	@wheel=$$(ls -t dist/*.whl | head -n 1) && $(BIN)/python tools/bill_of_materials.py $$wheel && echo $$wheel

clean:  ## remove what was installed and built
	rm -rf .venv .tools .spark-versions dist site console/node_modules src/queenstream/broker/static .mypy_cache .pytest_cache .ruff_cache .hypothesis
