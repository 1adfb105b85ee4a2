# shellcheck shell=bash
# What job scripts share; sourced by them from the repository's root. Not a program.
#
#   PYTHON   interpreter (default: .venv's, else python3)
#   NPROC    processes on each node (default: its GPUs, else 1)
#   OPTIONS  further settings, KEY=VALUE KEY=VALUE … (qsub passes no arguments to a script)

if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=$PWD/.venv/bin/python
fi

# shellcheck disable=SC2034 # the sourcing script puts it behind its own arguments
read -ra more <<<"${OPTIONS:-}"

# Copies a folder to the node's own disk, once, and prints where it is; a shared file system is slow for many small files.
stage() {
  local scratch=${PBS_JOBFS:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}
  local target
  target=$scratch/emac-data/$(basename "$1")
  mkdir -p "$target"
  cp -Ru "$1/." "$target/"
  echo "$target"
}

# A port that nobody else's job on this node uses: derived from the job's number.
job_port() {
  local number=${PBS_JOBID:-${SLURM_JOB_ID:-$$}}
  number=${number//[^0-9]/}
  echo $((20000 + 10#${number:-0} % 20000 + ${1:-0}))
}

# with_sigterm self|children COMMAND…: runs it and hands on SIGTERM (the queue's time limit), so that a checkpoint is
# written. `children` tells the processes that COMMAND started instead of itself: torch.distributed.run, told itself, ends
# with an error code even where they end well.
with_sigterm() {
  local whom=$1 child="" told="" code
  shift
  trap 'told=yes; hand_on_sigterm "$whom" "$child"' TERM # before the command is there: no signal is lost
  "$@" &
  child=$!
  [[ -z "$told" ]] || hand_on_sigterm "$whom" "$child"
  while :; do
    told="" code=0
    wait "$child" || code=$?
    [[ -n "$told" ]] || break # else the trap cut the wait short
  done
  trap - TERM
  return "$code"
}

hand_on_sigterm() {
  local targets=$2
  [[ $1 == children ]] && targets=$(pgrep -P "$2" || echo "$2")
  # shellcheck disable=SC2086
  kill -TERM $targets 2>/dev/null || true
}

# train CFG [--options KEY=VALUE…]: train.py in NPROC processes on this node, or one of NNODES nodes.
train() {
  local cfg=$1 nproc=${NPROC:-}
  shift
  if [[ -z "$nproc" ]]; then
    nproc=$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)
    ((nproc > 0)) || nproc=1
  fi
  local launcher=(-m torch.distributed.run --nproc_per_node="$nproc")
  if ((${NNODES:-1} > 1)); then
    launcher+=(--nnodes="$NNODES" --rdzv_backend=c10d --rdzv_id="$(job_port)" --rdzv_endpoint="$HEAD_NODE:$(job_port)")
  else
    launcher+=(--standalone)
  fi
  local whom=children
  ((nproc * ${NNODES:-1} > 1)) || { launcher=() && whom=self; }
  with_sigterm "$whom" "$PYTHON" ${launcher[@]+"${launcher[@]}"} train.py --cfg-path "$cfg" "$@"
}
