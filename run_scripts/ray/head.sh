#!/usr/bin/env bash
# Starts the head of a Ray cluster on this machine and prints its address. Stop it with `ray stop`.
#
#   run_scripts/ray/head.sh [MORE ARGUMENTS OF ray start…]
#
#   RAY_PORT   the head's port (default 6379)
#   NUM_CPUS   how many one-processor workers this node runs (default: its cores)
#   PYTHON     interpreter with emac-plus[ray] (default: .venv's, else python3)
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=run_scripts/common/job.sh
source run_scripts/common/job.sh
export RAY_AUTH_MODE=token # without it anyone who reaches the ports can run code here
"$PYTHON" -m ray.scripts.scripts get-auth-token --generate >/dev/null # once, into ~/.ray/auth_token
port=${RAY_PORT:-6379}
"$PYTHON" -m ray.scripts.scripts start --head --port="$port" ${NUM_CPUS:+--num-cpus="$NUM_CPUS"} "$@"
echo "address: $(hostname -I | cut -d' ' -f1):$port; give programs that use it RAY_AUTH_MODE=token"
