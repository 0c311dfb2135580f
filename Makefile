# Everything here works from a clean clone with Python 3.11+ and make.
# With cargo the native edge is built; without it, or with KVORUM_EDGE=python, the pure one serves.
# With a C compiler the hot modules are compiled too, unless KVORUM_COMPILED=0; tests run on what is
# compiled, those that change sources as they run on the sources.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# What `make run` needs, and what tests, checks and benchmarks need beside it.
INSTALLED := $(VENV)/.installed
DEVELOPED := $(VENV)/.developed
# Cargo's profile: a checkout is built in two thirds of the time of a release, which benchmarks get.
PROFILE ?= $(if $(filter bench%,$(MAKECMDGOALS)),release,checkout)
export PROFILE
EDGE_BUILT := rust/target/$(PROFILE)/.installed
NATIVE := src/kvorum/network/edge/_native.abi3.so
RUST_SOURCES := .cargo/config.toml rust/Cargo.lock $(shell find rust -path rust/target -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print)
CARGO_CHECKOUT := --quiet --workspace --profile checkout --locked --manifest-path rust/Cargo.toml
CORE := $(VENV)/.compiled
CORE_SOURCES := $(shell find src/kvorum -name '*.py')
CARGO := $(shell command -v cargo)
C_COMPILER := $(shell command -v cc || command -v gcc || command -v clang)
COMPILES := $(if $(filter 0,$(KVORUM_COMPILED)),,$(C_COMPILER)$(KVORUM_COMPILED))
GO := $(shell command -v go)
ORACLE := $(VENV)/oracle/.built
ORACLE_TOOLS := $(VENV)/oracle/.tools-built
TOOLS := $(VENV)/tools/.installed
CONSUMERS := $(VENV)/consumers/.installed
RELEASE := $(VENV)/release/.installed
TRY_ORACLE := $(if $(GO),try-oracle)

ifeq ($(KVORUM_EDGE),)
# The native edge is for Linux.
EDGE := $(if $(and $(CARGO),$(filter Linux,$(shell uname -s))),native,python)
else ifneq ($(filter native python,$(KVORUM_EDGE)),)
EDGE := $(KVORUM_EDGE)
export KVORUM_EDGE
else
$(error KVORUM_EDGE is '$(KVORUM_EDGE)'; expected 'native' or 'python', or leave it unset)
endif

# Tests run in this many processes. Each test has its own directory and free ports, so they do not
# interfere; they wait for servers as much as they compute, so that two cores have work for three.
PROCESSES ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=worksteal
# Users run the compiled core, and so do tests, but for those that patch what is compiled.
SOURCES_TESTS := $$(grep -rl 'pytest.mark.sources' tests --include='test_*.py')
ifeq ($(COMPILES),)
tests = $(PYTEST) -m '$(1)'
else
tests = KVORUM_COMPILED=1 $(PYTEST) -m '$(1) and not sources' \
	&& KVORUM_COMPILED=0 $(PYTEST) -m '$(1) and sources' $(SOURCES_TESTS)
endif

# Tests start hundreds of servers: where no bytecode is kept, each would compile every source.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
SEEDS ?= 100
FIRST_SEED ?= 0
PROCFILE ?= Procfile
.PHONY: help setup run cluster setup-dev test test-long test-rust collected check flakes lint lint-python lint-rust bench abuse trace-put put-hops bench-cluster bench-server bench-auth bench-client bench-ctl bench-embed bench-gateway bench-edge bench-etcd bench-member bench-peer bench-proxy bench-raft bench-restarts bench-snapshot bench-storage bench-tail bench-testing bench-wal mutate-raft campaign consumers properties differential sim sim-shrink sim-planted proto openapi metrics-page modules diagrams client clean h2load clients oracle try-oracle lock audit notices wheels client-wheel release-check release-tag sbom image smoke smoke-client

help: ## Show the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1|/' \
		| while IFS='|' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

setup: ## Make what `make run` needs: .venv, the edge, the compiled core
	@$(MAKE) --no-print-directory --jobs=2 built

setup-dev: ## Install what tests, checks and benchmarks need, too
	@$(MAKE) --no-print-directory --jobs=2 built $(DEVELOPED)

.PHONY: built
built: $(INSTALLED) $(if $(filter native,$(EDGE)),$(EDGE_BUILT)) $(if $(COMPILES),$(CORE))
	@$(if $(CARGO)$(KVORUM_EDGE),,echo "WARNING: The network edge stays pure Python, because there is no cargo: it will serve \
	about 40 times fewer requests than with the native one. Install Rust 1.85 or later and run 'make setup' again, or set \
	KVORUM_EDGE=python to accept it." >&2)
	@$(if $(C_COMPILER)$(KVORUM_COMPILED),,echo "WARNING: The core stays Python, because there is no C compiler: a put will take \
	about twice the time that it takes in the compiled core. Install gcc and run 'make setup' again, or set KVORUM_COMPILED=0 to \
	accept it." >&2)
	@# Commands start in half the time, even where Python may not write bytecode by itself.
	@$(BIN)/python -m compileall -q src/kvorum

# Exactly what the lock has the hashes of is installed, and nothing else.
# The extension is left out here: the next rule builds it, and fails if that fails.
$(INSTALLED): pyproject.toml setup.py distributions/client/pyproject.toml requirements.lock $(wildcard bin/*)
	@echo '== Installing the Python packages that Kvorum and its build need'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --require-hashes --requirement requirements.lock
	@KVORUM_EDGE=python $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(DEVELOPED): $(INSTALLED) requirements-dev.lock
	@echo '== Installing the Python packages that tests, checks and benchmarks need'
	@$(PIP) install --quiet --require-hashes --requirement requirements-dev.lock
	@touch $@

$(EDGE_BUILT): $(RUST_SOURCES)
	@echo '== Building the native edge with cargo, profile $(PROFILE)'
	@cargo build --profile $(PROFILE) --locked --manifest-path rust/Cargo.toml
	@install -m 755 rust/target/$(PROFILE)/libkvorum_edge.so $(NATIVE).new
	@mv $(NATIVE).new $(NATIVE)
	@# The edge of the other profile is not there any more.
	@rm -f rust/target/*/.installed
	@touch $@

# Does nothing if the core was compiled from these very sources, whatever their dates.
$(CORE): $(INSTALLED) $(CORE_SOURCES)
	@echo '== Compiling the core with mypyc'
	@$(BIN)/python -m kvorum.compiled.build
	@touch $@

run: setup ## Start a node
	$(BIN)/kvorum

cluster: setup ## Start three members here; make cluster PROCFILE=Procfile.learner adds a fourth, Procfile.proxy proxies
	$(BIN)/python tools/procfile.py $(PROCFILE)

# Building, checking and compiling run side by side; each prints its output in one piece.
test: ## Lint, then run every test that is not long
	@$(MAKE) --no-print-directory --jobs=$(PROCESSES) --output-sync=target prepared
	$(call tests,not campaign and not long)
	@$(BIN)/kvorum --version | grep -E 'edge|core'

.PHONY: prepared
prepared: $(TRY_ORACLE) built lint test-rust collected h2load clients

# Once before all processes do it: the first time compiles every test, which is most of the time.
collected: $(DEVELOPED)
	@KVORUM_COMPILED=0 $(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null

check: setup-dev ## After an edit: lint, types, and the tests of what changed since the last commit
	@$(BIN)/python -m tools.check

# Not part of `make test`: twenty runs of it, half of them on a busy machine, take hours.
flakes: setup-dev ## Run `make test` RUNS=20 times, half of them beside busy processes; list what failed even once
	@$(BIN)/python -m tools.flakes --runs $(or $(RUNS),20)

# As long as all others together: soak, scale, chaos, simulated runs that are looked at.
test-long: setup-dev h2load clients $(TRY_ORACLE) ## Run the tests that `make test` leaves out because each takes seconds
	$(call tests,long and not campaign)

lint: lint-python lint-rust ## Check style and types

lint-python: $(DEVELOPED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

# After the edge, whose profile and so most of whose dependencies they share.
lint-rust: $(if $(filter native,$(EDGE)),$(EDGE_BUILT))
ifeq ($(EDGE),native)
	cargo fmt --all --check --manifest-path rust/Cargo.toml
	cargo clippy $(CARGO_CHECKOUT) -- -D warnings
endif

test-rust: lint-rust
ifeq ($(EDGE),native)
	cargo test $(CARGO_CHECKOUT) --no-default-features
endif

bench: $(if $(filter 3,$(NODES)),bench-cluster,bench-server bench-auth bench-client bench-ctl bench-embed bench-gateway bench-edge bench-member bench-peer bench-proxy bench-raft bench-snapshot bench-storage bench-testing bench-wal) $(if $(GO),bench-etcd) ## Run every benchmark as ratios; with NODES=3 those of clusters

bench-cluster: setup-dev h2load $(TRY_ORACLE) ## Compare three members with three of etcd's: rates, latencies, failover, catching up
	$(BIN)/python -m bench.cluster

# Not part of `make bench`: a thousand restarts take half an hour.
bench-restarts: setup-dev ## Kill members under load beside busy processes; show how long they take to serve, KILLS=1000
	$(BIN)/python -m bench.restarts --kills $(or $(KILLS),1000)

bench-server: setup-dev h2load $(TRY_ORACLE) ## Compare the server with etcd: rates, latencies, memory, start-up
	$(BIN)/python -m bench.server

abuse: setup-dev $(TRY_ORACLE) ## Attack the server and a real etcd beside it, and print one table; ONLY="part of a name"
	$(BIN)/python -m bench.abuse $(if $(ONLY),--only "$(ONLY)")

trace-put: setup-dev ## Show, system call by system call, that an answer follows its fdatasync
	@command -v strace >/dev/null || { apt-get update -qq && apt-get install -y -qq strace; }
	$(BIN)/python -m bench.trace

put-hops: setup-dev ## Count the functions that a put passes in the server, room by room
	$(BIN)/python -m bench.hops

bench-auth: setup-dev h2load $(TRY_ORACLE) ## Measure what authentication costs, beside etcd's, and puts amid a flood of logins
	$(BIN)/python -m bench.auth

bench-client: setup-dev $(TRY_ORACLE) ## Compare the Python client with others, and Go's: round trips, many calls, events, start
	$(BIN)/python -m bench.client

bench-ctl: setup-dev $(TRY_ORACLE) ## Time kvorumctl from its start to its end, beside bare Python and etcdctl
	$(BIN)/python -m bench.ctl

bench-embed: setup-dev ## Measure members inside a program: calls without a socket, latencies while it computes, starts
	$(BIN)/python -m bench.embed

bench-gateway: setup-dev h2load $(TRY_ORACLE) ## Compare the JSON gateway with etcd's: rates, latencies, watchers
	$(BIN)/python -m bench.gateway

bench-edge: setup-dev h2load $(TRY_ORACLE) ## Compare the edge with etcd's serializable range
	$(BIN)/python -m bench.edge

bench-etcd: setup-dev $(TRY_ORACLE) ## Run etcd's own benchmark against both servers, where there is Go; NODES=3: three members
	$(BIN)/python -m bench.benchmark_tool --members $(if $(filter 3,$(NODES)),3,1)

bench-member: setup-dev ## Measure what a put, a transaction and a read cost the loop
	$(BIN)/python -m bench.member

bench-peer: setup-dev ## Measure what an append costs two members between their loops
	$(BIN)/python -m bench.peer
	$(BIN)/python -m bench.peer --tls

bench-proxy: setup-dev h2load $(TRY_ORACLE) ## Compare the gRPC proxy with etcd's: rates, watchers, the latency it adds
	$(BIN)/python -m bench.proxy

bench-raft: setup-dev ## Measure the consensus code alone
	$(BIN)/python -m bench.raft

bench-snapshot: setup-dev h2load $(TRY_ORACLE) ## Measure images, and puts while snapshots are fetched, beside etcd's
	$(BIN)/python -m bench.snapshot
	$(BIN)/python -m bench.images

bench-storage: setup-dev $(TRY_ORACLE) ## Measure index, store and LMDB; memory beside etcd's
	$(BIN)/python -m bench.storage

# Not part of `make bench`: ten minutes for each server, on one member and on three.
bench-tail: setup-dev h2load $(TRY_ORACLE) ## Show the slowest calls of both servers under Kubernetes' load; TAIL="--objects 100000 --seconds 60"
	$(BIN)/python -m bench.tail $(TAIL)

bench-testing: setup-dev ## Time the fixtures of the pytest plugin: the first store, the next ones, clusters
	$(BIN)/python -m bench.testing

bench-wal: setup-dev ## Measure the write-ahead log: framing, writing, reading
	$(BIN)/python -m bench.wal

campaign: setup-dev clients $(TRY_ORACLE) ## Run the tests that take minutes, such as etcdctl's own check of performance
	$(BIN)/python -m pytest -m campaign

consumers: setup-dev $(TRY_ORACLE) $(CONSUMERS) ## Run etcd3gw, tooz, Patroni, APISIX's calls and a page in Chromium; SERVER=etcd asks a real etcd
	$(BIN)/python -m pytest -m '' -k '$(if $(filter etcd,$(SERVER)),etcd],not etcd])' tests/consumers

# Debian's Python: PostgreSQL's user must be able to run it.
$(CONSUMERS): tools/consumers/requirements.lock
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium chromium-driver curl postgresql python3-venv
	/usr/bin/python3 -m venv $(VENV)/consumers
	$(VENV)/consumers/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement tools/consumers/requirements.lock
	touch $@

# The examples of `make test` are always the same, so that its result depends on the change alone.
properties: setup-dev ## Try every property on other examples than `make test` does
	KVORUM_COMPILED=0 $(PYTEST) --hypothesis-profile=random \
		$$(grep -rl '^from hypothesis' tests --include='test_*.py')

differential: setup-dev $(TRY_ORACLE) ## Compare thousands of sequences of calls, and every command, with a real etcd's answers
	KVORUM_SEQUENCES=5000 KVORUM_KINDS=all $(BIN)/python -m pytest --timeout=0 --hypothesis-profile=random \
		tests/server/rpc/test_differential.py tests/server/rpc/test_watch_differential.py tests/server/rpc/test_process.py \
		tests/server/rpc/test_contention.py tests/proxy/test_differential.py \
		tests/cluster/test_differential.py tests/state/auth/test_table.py tests/state/auth/test_differential.py \
		tests/state/auth/test_members.py tests/state/auth/test_grants.py tests/server/http/test_differential.py \
		tests/server/http/test_streams_differential.py tests/process/settings/test_differential.py
	KVORUM_KINDS=all $(PYTEST) tests/tools/ctl tests/client tests/tools/utl tests/tools/doctor

mutate-raft: setup-dev ## Break the rules of Raft one at a time; every one must be noticed
	KVORUM_COMPILED=0 $(BIN)/python -m tests.raft.mutate

sim: setup-dev ## Simulate clusters under faults: make sim SEEDS=100 FIRST_SEED=0, or replay one: SEED=42, PLOT=1 draws it
	$(BIN)/python -m kvorum.sim $(if $(SEED),--replay $(SEED),--seeds $(SEEDS) --first-seed $(FIRST_SEED)) $(if $(PLOT),--plot)

sim-shrink: setup-dev ## Cut what a failing seed does not need: make sim-shrink SEED=42, PLOT=1 draws the rest
	$(BIN)/python -m kvorum.sim --shrink $(SEED) $(if $(PLOT),--plot)

sim-planted: setup-dev ## Plant bugs in the member; the simulator must find every one
	KVORUM_COMPILED=0 $(BIN)/python -m kvorum.sim.planted

proto: setup-dev ## Regenerate src/kvorum/api/pb/
	$(BIN)/python proto/generate.py

metrics-page: setup-dev ## Write docs/metrics.md from the table of metrics
	$(BIN)/python -m tools.metrics_page

openapi: setup-dev ## Write docs/openapi.json anew
	$(BIN)/python -m kvorum.server.http.openapi > docs/openapi.json

modules: setup-dev ## Write docs/modules.md from the docstrings of all modules
	$(BIN)/python -m tools.layers

diagrams: setup-dev ## Draw the transition tables as state diagrams in the docs
	$(BIN)/python -m tools.diagrams

client: setup-dev ## Write the client for threads anew, from the one for asyncio
	$(BIN)/python tools/unasync.py

# The versions and sums of all modules are pinned; `benchmark` was last released with 3.6.8.
oracle: $(if $(GO),$(ORACLE) $(ORACLE_TOOLS)) ## Build the etcd to compare with and its tools, 3.7.3, where there is Go
	@$(if $(GO),$(VENV)/oracle/bin/etcd --version,echo 'There is no Go here to build etcd with; tests compare with 3.5.1.')

$(ORACLE): $(wildcard tools/oracle/etcd/go.*)
	@echo '== Building etcd 3.7.3 to compare with'
	@mkdir -p $(VENV)/oracle/bin
	@cd tools/oracle/etcd && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$(VENV)/oracle/bin/etcd go.etcd.io/etcd/server/v3
	@cd tools/oracle/etcd && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$(VENV)/oracle/bin/ \
		go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3
	@touch $@

$(ORACLE_TOOLS): $(wildcard tools/oracle/tools/go.*) | $(ORACLE)
	@echo "== Building etcd's tools to compare with"
	@cd tools/oracle/tools && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$(VENV)/oracle/bin/ \
		$(addprefix go.etcd.io/etcd/v3/tools/,benchmark etcd-dump-db etcd-dump-logs etcd-dump-metrics)
	@touch $@

# Go may be too old or its modules out of reach: then the tests compare with 3.5.1, and print that.
try-oracle:
	@$(MAKE) --no-print-directory oracle || echo 'etcd 3.7.3 could not be built; tests compare with 3.5.1.'

PIP_COMPILE := $(VENV)/tools/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --no-annotate \
	--no-header --extra build

# With the oldest supported Python: what only that one needs does no harm elsewhere.
lock: $(TOOLS) ## Write requirements.lock and requirements-dev.lock anew, from pyproject.toml
	$(PIP_COMPILE) --upgrade --extra dev --output-file requirements-dev.lock pyproject.toml
	$(PIP_COMPILE) --upgrade --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
	sed -i "1i # Written by 'make lock'." requirements.lock requirements-dev.lock

# Whatever could not be looked up is printed, and fails: silence would look like a clean result.
audit: $(TOOLS) ## Ask for known advisories of every dependency; needs the services that know of them
	@failed=0; \
	$(VENV)/tools/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements-dev.lock \
		|| { failed=1; echo 'Python packages: not all of them are cleared; see above.'; }; \
	if [ -z '$(CARGO)' ] || ! cargo audit --version >/dev/null 2>&1; then \
		failed=1; echo "Crates: not looked up; 'cargo install --locked cargo-audit' gets what does."; \
	else \
		cargo audit --file rust/Cargo.lock || { failed=1; echo 'Crates: not all of them are cleared; see above.'; }; \
	fi; exit $$failed

$(TOOLS):
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-audit==2.10.1 pip-tools==7.6.2
	touch $@

notices: ## Write rust/NOTICES.txt anew: the licenses of what is linked into the edge
	$(PYTHON) tools/notices.py

# Wheels with native parts are for the Pythons of PATH, or for those that PYTHONS lists by their paths.
wheels: $(RELEASE) ## Build what this machine can of a release into dist/; PYTHONS="python3.11 python3.12"
	$(VENV)/release/bin/python -m tools.release.wheels

client-wheel: ## Build the wheel of kvorum-client alone into dist/
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist ./distributions/client

# Not part of `make test`: it gets every dependency for each artefact anew.
release-check: $(INSTALLED) ## Install each artefact of dist/ where there is no compiler, and try it; PYTHONS as for wheels
	$(BIN)/python -m tools.release.check

# In its entry of the changelog, a date replaces the word "Unreleased" before the tag is set.
release-tag: # Fails unless TAG is "v" and the version, and the changelog has the version with a date.
	@version=$$(sed -n 's/^__version__ = "\(.*\)"$$/\1/p' src/kvorum/__init__.py); \
	test "$$TAG" = "v$$version" || { echo "The tag is '$$TAG', but the version is $$version."; exit 1; }; \
	grep -Eq "^## $$version - [0-9]{4}-" CHANGELOG.md || { echo "CHANGELOG.md has no date for $$version."; exit 1; }

sbom: $(TOOLS) ## Write build/sbom.cdx.json: the Python packages that a release was tested with
	@mkdir -p build
	$(VENV)/tools/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml \
		--output-reproducible --output-file build/sbom.cdx.json

image: ## Build the container image kvorum from this checkout
	docker build --file deploy/container/Dockerfile --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) --tag kvorum .

smoke: setup-dev ## Run the tests that show on any system that server, client and tools work
	$(BIN)/python -m pytest -m '' tests/storage/platform/test_smoke.py tests/storage/files tests/embed/test_lending.py

smoke-client: ## Install the client that `make client-wheel` built, and try it: on macOS, Windows and Alpine, too
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade --target build/client dist/kvorum_client-*.whl
	PYTHONPATH=build/client $(PYTHON) tools/client_smoke.py

$(RELEASE): tools/release/requirements.lock
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

# Debian packages it. Only root may install it; without it the summary of the tests says so.
h2load:
	@command -v h2load >/dev/null || test "$$(id -u)" -ne 0 || ! command -v apt-get >/dev/null \
		|| { apt-get update -qq && apt-get install -y -qq nghttp2-client; }

clients: # The npm client of tests/clients, where there is Node.js.
	@if command -v npm >/dev/null && ! test -d tests/clients/node/node_modules; then \
		npm ci --silent --prefix tests/clients/node; fi

clean: ## Remove what the targets made
	rm -rf tests/clients/node/node_modules $(VENV) build dist rust/target src/*.egg-info $(NATIVE)
	rm -rf $(addprefix distributions/*/,build *.egg-info)
	find src/kvorum/compiled -mindepth 1 -type d -prune -exec rm -rf {} +
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
