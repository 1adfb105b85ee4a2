#!/usr/bin/env bash
# Inside a PBS or Slurm job of several nodes: starts a Ray cluster on them, runs a command that uses it, stops the cluster.
#
#   sbatch --nodes=4 --ntasks-per-node=1 --cpus-per-task=48 --wrap \
#     'run_scripts/ray/in_allocation.sh .venv/bin/python evaluate.py --cfg-path … --options run.executor=ray run.num_workers=128'
#   echo 'cd $PBS_O_WORKDIR; run_scripts/ray/in_allocation.sh …' | qsub -l select=4:ncpus=48
#
# The command finds the cluster through RAY_ADDRESS. It runs on the first node, beside the head, and trains there.
#
#   NUM_CPUS   how many one-processor workers a node runs (default: its cores)
#   PYTHON     interpreter with emac-plus[ray] (default: .venv's, else python3)
set -euo pipefail
(($# > 0)) || { echo "error: give the command to run" >&2 && exit 2; }
cd "$(dirname "$0")/../.."
# shellcheck source=run_scripts/common/job.sh
source run_scripts/common/job.sh
export RAY_AUTH_MODE=token # without it anyone who reaches the ports can run code here

if [[ -n "${SLURM_JOB_NODELIST:-}" ]]; then
  # Some versions of srun (22.05 to 23.02) do not take sbatch's number over: a task then gets one processor.
  cpus=(${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"})
  mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  on_node() { srun --nodes=1 --ntasks=1 ${cpus[@]+"${cpus[@]}"} --overlap --nodelist="$1" "${@:2}"; }
elif [[ -n "${PBS_NODEFILE:-}" ]]; then
  mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE")
  on_node() { pbs_tmrsh "$1" /usr/bin/env RAY_AUTH_MODE="$RAY_AUTH_MODE" "${@:2}"; } # it hands on no environment
else
  echo "error: neither SLURM_JOB_NODELIST nor PBS_NODEFILE is set: this is no job; use head.sh and workers.sh" >&2
  exit 2
fi

port=$(job_port 1)
ray=("$PYTHON" -m ray.scripts.scripts)
started=()
stop() { # `ray stop` would end every Ray process of the user on this machine, another job's too
  ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT

"${ray[@]}" get-auth-token --generate >/dev/null
address=$(hostname -I | cut -d' ' -f1)
# Ray's client server has port 10001 in every cluster, and with --block the head ends if that server cannot start.
"${ray[@]}" start --head --port="$port" --ray-client-server-port="$(job_port 2)" ${NUM_CPUS:+--num-cpus="$NUM_CPUS"} --block &
head=$!
started+=("$head")
until (: <>"/dev/tcp/$address/$port") 2>/dev/null; do
  kill -0 "$head" 2>/dev/null || { echo "error: Ray's head did not start" >&2 && exit 1; }
  sleep 0.2
done
export RAY_ADDRESS=$address:$port
for node in "${nodes[@]:1}"; do
  on_node "$node" "${ray[@]}" start --address="$RAY_ADDRESS" ${NUM_CPUS:+--num-cpus="$NUM_CPUS"} --block &
  started+=("$!")
done
with_sigterm self "$@"
