# `make help` lists what there is to do.

BIN := .venv/bin
# Passed on to pytest: make test ARGS='-k publish -x'
ARGS ?=
# How long make soak, storm, kills and churn go on; 0 is until stopped.
SECONDS ?= 0
# Test processes, for two cores: a test that waits leaves its core to another.
JOBS ?= 3
# Python keeps what it has compiled, wherever this is set: each test process would else compile all tests again, 7 s of
# processor, and each program that a test starts all of pgps, 0.05 s.
unexport PYTHONDONTWRITEBYTECODE
# The gate says the same of the same commit each time: the order of tests and what is drawn at random are fixed.
FIXED := --randomly-seed=1 --hypothesis-seed=1
# Each writes its files, or compares them when called with --check.
GENERATORS := $(wildcard tools/*.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all servers pictures package soak storm kills churn lint format generate bench field profile clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name does; do \
	    printf '  %-10s %s\n' "$$name" "$$does"; done

setup: ## install what is missing: PostgreSQL, Java and venv from Debian, Python packages in .venv
	@tools/setup.sh dev,demo,spark

demo: setup ## start a broker of its own, play real data through it and check the result
	@$(BIN)/pgps demo

check: lint ## lint, and run a part of the tests of each room: for the daily loop
	@$(BIN)/pytest -n $(JOBS) --part $(ARGS)

test: setup ## run the tests, except the slow ones, in a fixed order
	@$(BIN)/pytest -n $(JOBS) $(FIXED) $(ARGS)

test-all: setup ## run all tests, the slow ones too, in an order of its own each time
	@$(BIN)/pytest -n $(JOBS) -m "slow or not slow" $(ARGS)

servers: setup ## run a part of the tests on PostgreSQL 16, 17 and 18, which npm has; ARGS='18 tests/links -x'
	@$(BIN)/python -m tests.servers $(ARGS)

pictures: setup ## make the pictures of the console in docs/images again, with chromium
	PGPS_SCREENSHOTS=docs/images $(BIN)/pytest -q tests/console/test_browser.py

package: setup ## build wheel and sdist into dist, check them, and try the wheel in an environment of its own
	rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/twine check --strict dist/*
	@.ci/package

soak: setup ## tell random stories of linked brokers with fresh seeds, for SECONDS or until stopped
	@$(BIN)/python -m tests.links.soak --seconds $(SECONDS) $(ARGS)

storm: setup ## storms over linked brokers under load, SEED or fresh ones, COUNT of them or until stopped; ARGS='--help'
	@$(BIN)/python -m tests.links.storm $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) --for $(SECONDS) $(ARGS)

kills: setup ## kill server, sessions, worker and consumers (ARGS=--groups: members of groups) of one broker, until stopped
	@$(BIN)/python -m tests.chaos.kills --for $(SECONDS) $(ARGS)

churn: setup ## churn of types, subscriptions, filters and owners of one broker under load, SEED or fresh ones, until stopped
	@$(BIN)/python -m tests.chaos.churn $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) --for $(SECONDS) $(ARGS)

lint: setup ## check style, types, directions of imports, and that generated files are up to date
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd examples/demo && $(abspath $(BIN))/lint-imports
	cd examples/chess && $(abspath $(BIN))/lint-imports
	@set -e; for tool in $(GENERATORS); do echo "$$tool --check"; $(BIN)/python "$$tool" --check; done

format: setup ## put the Python code in shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

generate: setup ## write the generated files again
	@set -e; for tool in $(GENERATORS); do $(BIN)/python "$$tool"; done

bench: ## measure, print the table, keep the raw results in bench/
	@tools/setup.sh dev,demo,spark
	@tools/setup.sh bench
	@$(BIN)/python -m bench $(ARGS)

field: ## measure beside other systems, which are fetched by name; ARGS='--only NAME --missing --runs N --quick --long --write'
	@tools/setup.sh dev,demo
	@tools/setup.sh bench
	@$(BIN)/python -m bench.field $(ARGS)

# make profile NAME: what follows upon the target is its argument, not another target.
ifeq (profile,$(firstword $(MAKECMDGOALS)))
PATHS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
ifneq (,$(PATHS))
.PHONY: $(PATHS)
$(PATHS): profile ; @:
endif
endif

profile: ## draw flame graphs of server and worker: make profile publish; bulk, dispatch, receive, hop; ARGS='--seconds N'
	@tools/setup.sh dev,demo
	@tools/setup.sh profile
	@$(BIN)/python -m bench.profile $(PATHS) $(ARGS)

clean: ## remove what was made here: environment, caches, builds
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
