# Few targets, each one line of a tool. FLEXPIPE_VENV and FLEXPIPE_ENGINE_VENV say where environments lie.
PYTHON ?= python3
ENGINE ?= sglang
export FLEXPIPE_VENV ?= $(CURDIR)/.venv
export FLEXPIPE_ENGINE_VENV ?= $(CURDIR)/.venv-sglang
BIN := $(FLEXPIPE_VENV)/bin

.PHONY: demo up test check setup engine schemas format
demo: setup $(if $(filter sglang,$(ENGINE)),engine) ## a live gear shift under running streams, then the account of it
	$(BIN)/flexpipe demo --engine $(ENGINE)
up: setup $(if $(filter sglang,$(ENGINE)),engine) ## keep it running and print the URLs
	$(BIN)/flexpipe up --engine $(ENGINE)
test: setup engine ## every test, real SGLang included
	$(BIN)/python -m pytest -m "not sglang" --numprocesses 2 --dist loadfile
	$(BIN)/python -m pytest -m sglang
check: setup ## the fast subset: format, lint, imports, types, unit and property tests
	bash ops/setup/check.sh
setup: ## the control plane's environment
	@bash ops/setup/control.sh
engine: setup ## the SGLang environment, apart from the control plane's
	@bash ops/setup/engine.sh
schemas: setup ## write schemas/ anew from the catalogue
	$(BIN)/flexpipe schemas
format: setup
	$(BIN)/ruff check --fix-only -q . ; $(BIN)/ruff format -q .
