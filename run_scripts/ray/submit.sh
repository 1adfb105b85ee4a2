#!/usr/bin/env bash
# Submits a command of this repository as a job to a running Ray cluster and shows its output.
#
#   run_scripts/ray/submit.sh .venv/bin/python evaluate.py --cfg-path … --options run.executor=ray run.num_workers=64
#
#   RAY_API_SERVER_ADDRESS   the head's dashboard (default http://127.0.0.1:8265)
#   PYTHON                   interpreter with emac-plus[ray] (default: .venv's, else python3)
set -euo pipefail
(($# > 0)) || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
cd "$(dirname "$0")/../.."
# shellcheck source=run_scripts/common/job.sh
source run_scripts/common/job.sh
export RAY_AUTH_MODE=token # without it whoever reaches the ports can run code here
printf -v command '%q ' "$@"
exec "$PYTHON" -m ray.scripts.scripts job submit \
  --address "${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}" -- bash -c "cd $(printf '%q' "$PWD") && exec $command"
