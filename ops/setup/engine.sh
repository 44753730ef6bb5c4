#!/usr/bin/env bash
# Creates the environment that SGLang runs in, apart from the control plane's. Idempotent: a stamp
# holds the hash of what was installed.
#
#   FLEXPIPE_ENGINE_VENV      where it lies (default: .venv-sglang beside this repository's README)
#   FLEXPIPE_TORCH_INDEX_URL  package index to take torch's CPU build from; used for torch only
#   PYTHON                    interpreter to build it from (default: python3)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=${FLEXPIPE_ENGINE_VENV:-$root/.venv-sglang}
python=${PYTHON:-python3}
torch_fix="set FLEXPIPE_TORCH_INDEX_URL to PyTorch's index of CPU wheels (its install page names it for 'CPU') or to a mirror of it"
stamp=$venv/.flexpipe-engine

fail() { printf 'engine setup: %s\n' "$1" >&2; exit 1; }
step() { printf '==> %s\n' "$1"; }

# Runs a command whose output matters only when it fails; pip draws its bar where there is a terminal.
quietly() {
    if [[ -t 1 ]]; then "$@"; return; fi
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1; then rm -f "$log"; return; fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
}

install() { quietly "$venv/bin/python" -m pip install --disable-pip-version-check "$@"; }

# Asks what would be installed, before gigabytes of GPU libraries come down.
refuse_gpu_wheel() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --dry-run --no-deps \
        --ignore-installed --report - "$@" 2>/dev/null | "$venv/bin/python" -c '
import json, re, sys
found = json.load(sys.stdin)["install"][0]["metadata"].get("requires_dist", [])
sys.exit(any(re.match("nvidia|cuda|pytorch-triton-rocm", each) for each in found))' 2>/dev/null && return
    fail "the $torch found here is missing or a GPU build: $torch_fix"
}

refuse_other_torch() {
    local build
    build=$("$venv/bin/python" -W ignore -c 'import torch; print(torch.version.cuda or torch.version.hip or "cpu")') \
        || fail "torch does not import in $venv: remove that folder and run again"
    [[ $build == cpu ]] && return
    fail "torch in $venv is built for GPUs ($build), not CPU: remove that folder, then $torch_fix"
}

command -v "$python" >/dev/null || fail "no $python found: install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv), or set PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || fail "$("$python" --version) is too old: set PYTHON to a Python 3.11 or newer"
"$python" -c 'import ensurepip, venv' 2>/dev/null \
    || fail "$python cannot make virtual environments: apt install python3-venv"
[[ $(uname -m) == x86_64 ]] || fail "SGLang's CPU form is set up for x86_64 only, this is $(uname -m)"

interpreter=$("$python" -c 'import sys; print(sys.executable, sys.version)')
wanted=$(printf '%s\n' "$interpreter" "$root" | cat - "$root"/requirements/engine.txt \
    "$root"/requirements/engine-nodeps.txt "$root"/pyproject.toml | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    refuse_other_torch
    exit 0
fi

torch=$(grep -E '^torch==' "$root/requirements/engine.txt") || fail "requirements/engine.txt pins no torch"
index=()
[[ -n ${FLEXPIPE_TORCH_INDEX_URL:-} ]] && index=(--index-url "$FLEXPIPE_TORCH_INDEX_URL")

rm -f "$stamp"
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    step "SGLang environment in $venv (about 2.6 GB, two to five minutes)"
    "$python" -m venv --clear "$venv" || fail "could not create $venv"
fi
step "1/4 $torch"
refuse_gpu_wheel "${index[@]}" "$torch"
install "${index[@]}" "$torch" || fail "could not install $torch: $torch_fix"
refuse_other_torch
step "2/4 what SGLang needs on CPU"
install -r "$root/requirements/engine.txt" || fail "could not install requirements/engine.txt"
step "3/4 SGLang itself"
install --no-deps -r "$root/requirements/engine-nodeps.txt" || fail "could not install requirements/engine-nodeps.txt"
step "4/4 FlexPipe's plugin"
install --no-deps -e "$root" || fail "could not install the project into $venv"
refuse_other_torch
printf '%s\n' "$wanted" >"$stamp"
step "SGLang environment ready"
