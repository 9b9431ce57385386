# Trainyard. `make` lists what there is.

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/trainyard
UV := $(or $(shell command -v uv 2>/dev/null),$(CACHE)/uv/bin/uv)
RUN := $(UV) run --frozen --quiet
SLOWEST := --durations=20 --durations-min=0.5
PYTEST := $(RUN) pytest $(SLOWEST)
# TORCH=current: by the release that the image for GPUs has, in place of the image's own.
CURRENT := --requirements trainer-image/requirements-cuda.txt
MPI := $(patsubst %,--requirements tests/library/mpi/%.txt,openmpi mpich impi)
OTHER_TORCH = $(if $(TORCH),$(if $(filter current,$(TORCH)),$(CURRENT),$(error TORCH is '$(TORCH)': say current, or leave it out)))
INSIDE := python -m dev.localcluster.inside
LIBRARY_TESTS := trainer env HYPOTHESIS_PROFILE=ci python3 -m pytest -p no:cacheprovider $(SLOWEST) tests/library
# tests/unit/<package> of each package of the operator: Python alone, no programs, no simulation.
OPERATOR_TESTS := $(wildcard $(patsubst operator/trainyard/%,tests/unit/%,$(wildcard operator/trainyard/*)))
# $(call timed,NAME,COMMAND): run a tier and print its duration.
timed = start=$$(date +%s); $(2); code=$$?; seconds=$$(($$(date +%s) - start)); \
	echo "$(1): $$((seconds / 60)) min $$((seconds % 60)) s, exit code $$code"; exit $$code
# Sets of strings in the same order each time: a schedule of the simulation can then be repeated by its seed.
export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.PHONY: help demo quick operator-tests test all-tests mutation all-long-tests tests-that-compute tests-that-wait test-long unit library-test test-gpu api-test host-test cluster-test test-chaos lint generate release bench-scale bench-agents bench-memory bench-topology bench-recovery bench-frameworks bench-elastic bench-training bench-gpu cluster-up cluster-down fix setup

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Start a cluster, install the operator, run a job that recovers from a killed worker
	@$(RUN) python -m dev.demo

quick: setup ## Lint, types and the operator's unit tests: under 2 minutes on 2 idle cores
	@$(call timed,make quick,$(MAKE) --no-print-directory lint operator-tests)

operator-tests:
	@$(PYTEST) -n 2 $(OPERATOR_TESTS)

test: setup ## All tests, those on a real cluster included
	@$(call timed,make test,$(MAKE) --no-print-directory lint all-tests)

all-tests:
	@$(RUN) python -m dev.localcluster down
	@$(RUN) python -m tests.support.prefetch
	@$(RUN) python -m dev.localcluster build
	@$(RUN) python -m dev.localcluster.images build
	@rm -rf build/audit
	@TRAINYARD_AUDIT=build/audit $(MAKE) --no-print-directory --jobs=2 --output-sync=line tests-that-compute tests-that-wait
	@$(RUN) python -m tests.support.permission_audit build/audit

# Two processors are busy for most of the time only where these run beside each other. Clusters, whose tests have deadlines, come first.
tests-that-compute:
	@nice -n 10 $(PYTEST) -n 2 tests/unit tests/simulation
	@nice -n 10 $(PYTEST) -n 2 tests/api tests/chaos
	@nice -n 10 $(RUN) $(INSIDE) $(LIBRARY_TESTS)

# The tests of the library use the images for ten minutes. So what the recipes need is built before.
tests-that-wait:
	@$(RUN) python -m dev.localcluster.images build frameworks
	@$(PYTEST) tests/host tests/cluster

test-long: setup ## What `make test` leaves out because it takes long (root; seven hours on 2 idle cores)
	@$(call timed,make test-long,$(MAKE) --no-print-directory all-long-tests)

all-long-tests:
	@$(RUN) $(INSIDE) $(CURRENT) $(LIBRARY_TESTS)
	@$(RUN) $(INSIDE) $(MPI) --namespaces trainer python3 -m pytest -p no:cacheprovider tests/library/test_mpi.py
	@$(RUN) $(INSIDE) frameworks-flower python3 -m pytest -p no:cacheprovider $(SLOWEST) tests/library/test_flower.py
	@$(RUN) $(INSIDE) --namespaces frameworks-horovod python3 -m pytest -p no:cacheprovider tests/library/test_horovod.py
	@$(RUN) python -m dev.localcluster down
	@LONG=1 $(PYTEST) tests/host/test_release.py tests/host/test_cuda_image.py
	@LONG=1 $(PYTEST) tests/api/test_real_schedulers.py
	@LONG=1 RECIPES='*' $(PYTEST) tests/cluster/test_recipes.py tests/cluster/test_framework_faults.py tests/cluster/test_mpi_torch.py tests/cluster/test_preflight.py tests/cluster/test_elastic.py tests/cluster/test_elastic_training.py tests/cluster/test_mixed_capacity.py tests/cluster/test_autoscaling.py tests/cluster/test_network_policies.py tests/cluster/test_progress.py tests/cluster/test_storms.py tests/cluster/test_accelerators.py
	@LONG=1 $(PYTEST) tests/api/test_kueue.py
	@$(MAKE) --no-print-directory test-chaos
	@SIMULATION_SCHEDULES=$(or $(SCHEDULES),1000000) $(PYTEST) -n 2 tests/simulation/test_engine.py

unit: setup ## The tests that need nothing but Python
	@$(call timed,make unit,$(PYTEST) -n 2 tests/unit tests/simulation)

mutation: setup ## Plant 300 mistakes into domain and engine, and report those that no test notices (under 30 minutes); ARGS='--mutants 60 --seed 2'
	@$(call timed,make mutation,$(RUN) python -m dev.mutation $(ARGS))

library-test: setup ## The training library, in the trainer image (root); TORCH=current: with torch's current release
	@$(RUN) $(INSIDE) $(OTHER_TORCH) $(LIBRARY_TESTS)

# Without `setup`: a machine with a GPU may have neither uv nor a network.
test-gpu: ## The tests that need a GPU, with a Python that has torch: PYTHON=/path/to/python3 make test-gpu
	@$(or $(PYTHON),python3) -m tests.gpu

api-test: setup ## The operator on a real API server without nodes, faults included; no root
	@$(PYTEST) -n 2 tests/api tests/chaos

host-test: setup ## The tests of the local cluster itself (root)
	@$(PYTEST) tests/host

cluster-test: setup ## The tests of the operator on a real cluster (root)
	@$(PYTEST) tests/cluster

test-chaos: setup ## All faults on a real API server, four at a time; PLAN='fail/lose-answer/7' plays one
	@PLAN='$(or $(PLAN),*)' $(PYTEST) $(if $(PLAN),tests/chaos/test_faults.py -v -n 0,tests/chaos -n 4)

lint: setup ## Style, types, import layers, vocabulary, lock file
	@$(RUN) ruff check . && $(RUN) ruff format --check . && $(RUN) mypy && $(RUN) lint-imports --no-logo && $(RUN) python -m dev.wordlint && $(UV) lock --check --quiet

fix: setup ## Format, and repair what ruff can repair
	@$(RUN) ruff check --fix . ; $(RUN) ruff format .

generate: setup ## Write all generated files: the CRD, the reference pages, the dashboards, the schema and README of the chart
	@$(RUN) python -m dev.codegen

# Without REGISTRY it is tried out: a registry on loopback and a key that is thrown away.
release: setup ## Build, sign and push images and chart (root): REGISTRY=HOST/PATH KEY=cosign.key, or neither to try it out on this machine
	@$(RUN) python -m dev.release $(if $(REGISTRY),--registry '$(REGISTRY)',--local) $(if $(KEY),--key '$(KEY)') $(ARGS)

bench-scale: setup ## The operator at scale, compared with Kubeflow and JobSet: build/bench/scale.json (root; 2 hours)
	@$(RUN) python -m dev.benchmarks.scale
	@$(RUN) python -m dev.benchmarks.linear

bench-agents: setup ## 10,000 agents report to one coordinator: build/bench/agents.json (3 minutes)
	@$(RUN) python -m dev.benchmarks.agents

bench-memory: setup ## 1,000 jobs of the largest size in the operator's memory: build/bench/memory.json (5 minutes)
	@$(RUN) python -m dev.benchmarks.memory

bench-topology: setup ## The traffic between racks of 4,096 GPUs, with ranks by index and by placement: build/bench/topology.json (a second)
	@$(RUN) python -m dev.benchmarks.topology

bench-recovery: setup ## Idle time after faults, compared with Kubeflow and JobSet: build/bench/recovery.json (root; 2 hours)
	@$(RUN) python -m dev.benchmarks.recovery

bench-frameworks: setup ## Idle time after faults of TensorFlow, Ray, MPI, XGBoost, JAX, compared with their operators: build/bench/frameworks.json (root; 2 hours)
	@$(RUN) python -m dev.benchmarks.frameworks

bench-elastic: setup ## The cost of a resize, compared with Kubeflow: build/bench/elastic.json (root; an hour)
	@$(RUN) python -m dev.benchmarks.elastic

# Without `setup`, as test-gpu.
bench-gpu: ## The library and the agent on a GPU beside plain torch: PYTHON=/path/to/python3 make bench-gpu (12 minutes)
	@$(or $(PYTHON),python3) -m dev.benchmarks.gpu $(ARGS)

bench-training: setup ## The training library, compared with plain torch, Accelerate and Lightning: build/bench/training.json (root; 15 minutes)
	@$(RUN) python -m dev.benchmarks.training

cluster-up: setup ## A local Kubernetes of three nodes with eight fake GPUs each (root)
	@$(RUN) python -m dev.localcluster up

cluster-down: setup ## Take the local cluster down
	@$(RUN) python -m dev.localcluster down

# Everything runs from the project's own environment; uv makes it from uv.lock. Where the machine has no uv, a private one
# is put into the cache folder.
setup: $(UV)
	@$(UV) sync --frozen --quiet

$(CACHE)/uv/bin/uv:
	@echo "installing uv into $(CACHE)/uv (a few seconds) …"
	@python3 -m venv $(CACHE)/uv 2>/dev/null || { apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null && python3 -m venv --clear $(CACHE)/uv; }
	@$(CACHE)/uv/bin/pip install --quiet --require-hashes --no-deps --requirement build-requirements.txt
