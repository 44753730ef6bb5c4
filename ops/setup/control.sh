#!/usr/bin/env bash
# Creates the control plane's environment from pinned requirements. Does nothing when it is current.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=${FLEXPIPE_VENV:-$PWD/.venv}
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "setup: $python is not installed; install Python 3.11 or newer, or set PYTHON" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "setup: $("$python" --version) is too old; FlexPipe needs 3.11 or newer (set PYTHON)" >&2; exit 1; }
stamp=$venv/.flexpipe-$(cat requirements/control.txt requirements/dev.txt pyproject.toml ops/setup/control.sh | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0
echo "setup: creating the control plane's environment (about a minute)"
if ! "$python" -m venv "$venv"; then
  echo "setup: $python cannot create an environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1
fi
rm -f "$venv"/.flexpipe-*
quiet=-q; [ -t 1 ] && quiet=""  # people see pip's own progress, logs do not
"$venv/bin/python" -m pip install $quiet --no-input -r requirements/control.txt -r requirements/dev.txt
"$venv/bin/python" -m pip install $quiet --no-input --no-deps -e .
touch "$stamp"
echo "setup: done"
