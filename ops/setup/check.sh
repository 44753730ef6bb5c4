#!/usr/bin/env bash
# The fast subset: format, lint, imports, types, unit and property tests. Under a minute on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${FLEXPIPE_VENV:-$PWD/.venv}/bin
"$bin/ruff" format --check -q .
"$bin/ruff" check -q .
"$bin/lint-imports" --no-logo
"$bin/mypy" libs services
"$bin/python" -m pytest -q tests/unit tests/property tests/contract -m "not sglang and not processes"
