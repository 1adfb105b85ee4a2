#!/usr/bin/env bash
# Adds this machine, or other machines over ssh, to a Ray cluster. The repository must have the same path on all of them.
#
#   run_scripts/ray/workers.sh ADDRESS [HOST…]        ADDRESS as head.sh prints it
#
#   NUM_CPUS   how many one-processor workers a node runs (default: its cores)
#   PYTHON     interpreter with emac-plus[ray] (default: .venv's, else python3)
set -euo pipefail
address=${1:?give the address that head.sh prints, for instance 10.0.0.1:6379}
shift
cd "$(dirname "$0")/../.."
# shellcheck source=run_scripts/common/job.sh
source run_scripts/common/job.sh
export RAY_AUTH_MODE=token # without it anyone who reaches the ports can run code here
if (($# == 0)); then
  exec "$PYTHON" -m ray.scripts.scripts start --address="$address" ${NUM_CPUS:+--num-cpus="$NUM_CPUS"}
fi
for host in "$@"; do
  printf -v join 'cd %q && NUM_CPUS=%q PYTHON=%q run_scripts/ray/workers.sh %q' "$PWD" "${NUM_CPUS:-}" "$PYTHON" "$address"
  # shellcheck disable=SC2029 # expanded here on purpose
  ssh "$host" "$join"
done
