# Everything a user types. Needs make and a Python 3.10-3.13; nothing else.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin

# Variables of `make up`; empty ones keep the default of the settings.
REPLICAS ?=
INGRESS ?=
EXECUTOR ?=
MODEL ?=
KAFKA ?=
HTTP_PORT ?=
CONFIG ?=
DETACH ?=
# Python that makes .venv; found if not given.
PYTHON ?=
# Variables of `make bench`: a folder of traces; Pythons that have the real peers.
TRACES ?=
DYNAMO_PYTHON ?=
SGLANG_PYTHON ?=

UP_FLAGS = $(if $(CONFIG),--config "$(CONFIG)") $(if $(REPLICAS),--replicas "$(REPLICAS)") \
	$(if $(INGRESS),--ingress "$(INGRESS)") $(if $(EXECUTOR),--executor "$(EXECUTOR)") \
	$(if $(MODEL),--model "$(MODEL)") $(if $(KAFKA),--kafka "$(KAFKA)") \
	$(if $(HTTP_PORT),--http-port "$(HTTP_PORT)") $(if $(filter-out 0 no false,$(DETACH)),--detach)

FETCH_MODEL = from pathlib import Path; from serve_app.engine.model_store import *; \
	ensure_default_model(Path('.cachelane/models'), print)

BENCH_ROUTING = $(BIN)/python -m bench.routing --traces "$(TRACES)" \
	$(if $(DYNAMO_PYTHON),--dynamo-python "$(DYNAMO_PYTHON)") \
	$(if $(SGLANG_PYTHON),--sglang-python "$(SGLANG_PYTHON)")
# bench.retention needs the coding sessions, which are not published with Mooncake's traces.
BENCH_RETENTION = $(if $(wildcard $(TRACES)/weka_merged_512_12k.delta.jsonl.gz),\
	$(BIN)/python -m bench.retention --traces "$(TRACES)",@echo left out: bench.retention)

NEEDS_TRTLLM = import sys; from tests.trtllm_executors import why_no_real_model as why; \
	sys.exit(why() and f'make test-trtllm needs a GPU, a Python with TensorRT-LLM (PYTHON=...) and \
	a small model (TRTLLM_TEST_MODEL=folder): {why()}')

.PHONY: help install up down test test-pure test-nodes test-trtllm check bench bench-full bench-demo \
	bench-traces proto clean
.DEFAULT_GOAL := help

help:
	@echo "make up        start Kafka, Ray and the service; Ctrl-C stops them. DETACH=1 returns when ready"
	@echo "               REPLICAS=2 INGRESS=1 EXECUTOR=local|scripted|trtllm MODEL=file.gguf KAFKA=host:port"
	@echo "               HTTP_PORT=8000 CONFIG=cachelane.yaml"
	@echo "make down      stop what make up started"
	@echo "make install   make $(VENV) (PYTHON=python3.12 chooses the interpreter)"
	@echo "make test      all tests: first those without a broker, then those with a real one and a real Ray"
	@echo "make test-pure  those of controllers/ only: seconds"
	@echo "make test-nodes  nodes that come and go with the replicas: a minute"
	@echo "make test-trtllm  with the real TensorRT-LLM and a GPU: TRTLLM_TEST_MODEL=folder of a small model"
	@echo "make check     ruff and mypy"
	@echo "make bench     TRACES=folder: bench-demo, then routing and retention on traces, ten minutes"
	@echo "make bench-full  the same with every row, case and seed of docs/benchmarks.md: an hour and more"
	@echo "               DYNAMO_PYTHON=, SGLANG_PYTHON=: their own routers beside the formulas"
	@echo "make bench-demo  the demonstration: KV-aware routing against random routing"
	@echo "make proto     generate the Python code of serve_app/proto/cachelane.proto"
	@echo "make clean     stop everything, remove $(VENV) and .cachelane"

install:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh infra/install.sh

up: install
	@exec $(BIN)/cachelane up $(UP_FLAGS)

down:
	@if [ -x $(BIN)/cachelane ]; then exec $(BIN)/cachelane down; \
	else echo "nothing to stop: $(VENV) does not exist"; fi

# Pure tests first: they say in seconds what the others say in minutes.
test: install
	$(BIN)/python -m pytest -m "not kafka and not ray and not model"
	@$(BIN)/python -c "$(FETCH_MODEL)"
	$(BIN)/python -m pytest -m "(kafka or ray or model) and not nodes"

test-nodes: install
	$(BIN)/python -m pytest -m nodes

test-pure: install
	$(BIN)/python -m pytest -q -m pure --ignore tests/cluster

# On a machine with a GPU and TensorRT-LLM; PYTHON is one that can import it.
test-trtllm:
	@$(if $(PYTHON),$(PYTHON),$(BIN)/python) -c "$(NEEDS_TRTLLM)"
	$(if $(PYTHON),$(PYTHON),$(BIN)/python) -m pytest -rs --timeout 1200 \
		tests/contract/test_trtllm_signatures.py tests/contract/test_executors.py -k "trtllm"

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: bench-traces bench-demo
	rm -f .cachelane/bench/routing-part.json
	$(BENCH_ROUTING) --only clean --seeds 1 --rows conversation:4,synthetic:4,weka:2 \
		--json .cachelane/bench/routing-part.json
	$(BENCH_RETENTION) --sizes 5000 --doubt ""

# What is already in the JSON file is kept, but for our own figures.
bench-full: bench-traces bench-demo
	$(BENCH_ROUTING) --again
	$(BENCH_RETENTION)

bench-demo: install
	$(BIN)/python -m bench.demo

bench-traces:
	@[ -n "$(TRACES)" ] || { echo "make bench needs TRACES=folder with Mooncake's two traces, from the" \
		"public repository kvcache-ai/Mooncake, folder FAST25-release/traces; alone: make bench-demo" \
		>&2; exit 2; }

proto: install
	$(BIN)/python -m serve_app.proto.generate

clean: down
	rm -rf $(VENV) .cachelane
