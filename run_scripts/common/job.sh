# shellcheck shell=bash
# Functions that the job scripts share. They source this file in the repository's root; it is not a program.
#
#   PYTHON   interpreter (default: .venv's, else python3)
#   NPROC    processes on each node (default: the GPUs that CUDA_VISIBLE_DEVICES names, without it the node's; at least 1)
#   OPTIONS  more settings, KEY=VALUE KEY=VALUE … (needed because qsub passes no arguments to a script); a value has no
#            blank in it: run.beta=[1.0,0.0]

if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=$PWD/.venv/bin/python
fi

# shellcheck disable=SC2034 # the sourcing script appends it to its own arguments
read -d '' -ra more <<<"${OPTIONS:-}" || true # on several lines, too

# stage FOLDER: copies it to the node's own disk and sets `data` to the copy's path: shared file systems are slow with
# small files. Each call makes a folder of its own, because the disk may be one that all jobs of the node share; the
# script's EXIT trap, which this sets, removes it (not after SIGKILL: then `emac-data-<job>.*` stays on such a disk).
# Call it in the script's own shell, not in $(…), whose end would remove the copy.
staged=()
stage() {
  local scratch=${PBS_JOBFS:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}} job=${PBS_JOBID:-${SLURM_JOB_ID:-$$}} folder
  if [[ ! -d $1 ]]; then
    echo "$1 is no folder: name the folder that collect has filled" >&2
    return 1
  fi
  mkdir -p "$scratch"
  trap 'rm -rf -- ${staged[@]+"${staged[@]}"}' EXIT
  folder=$(mktemp -d "$scratch/emac-data-${job//[^0-9A-Za-z]/-}.XXXXXX")
  staged+=("$folder")
  data=$folder/$(basename -- "$1")
  mkdir "$data"
  with_sigterm self cp -R -- "$1/." "$data/"
}

# job_port [0|1|2]: prints one of the job's three ports, made from its number: two jobs have the same ports only if their
# numbers differ by a multiple of 4000. All are below 32768, where Linux begins to choose ports by itself.
job_port() {
  local number=${PBS_JOBID:-${SLURM_JOB_ID:-$$}}
  number=${number%%.*} # of PBS: the server's name follows, which may have digits
  number=${number//[^0-9]/}
  echo $((20000 + 3 * (10#${number:-0} % 4000) + ${1:-0}))
}

# Prints the file in which this job notes its run directories, so that it finds them when the queue starts it again.
job_file() {
  echo "output/jobs/${PBS_JOBID:-${SLURM_JOB_ID:-$$}}"
}

# with_sigterm self|children COMMAND…: runs COMMAND and forwards SIGTERM (the queue's time limit), so that it can write a
# checkpoint; Ctrl-C, which a command in the background ignores, is forwarded as SIGTERM. `children` forwards it to the processes that COMMAND started, not to COMMAND itself: torch.distributed.run
# would end with an error code even where its processes end well.
with_sigterm() {
  local whom=$1 child="" told="" code
  shift
  trap 'told=yes; hand_on_sigterm "$whom" "$child"' TERM INT # set before the command starts, so that no signal is lost
  "$@" &
  child=$!
  [[ -z "$told" ]] || hand_on_sigterm "$whom" "$child"
  while :; do
    told="" code=0
    wait "$child" || code=$?
    [[ -n "$told" ]] || break # otherwise the trap interrupted the wait
  done
  trap - TERM INT
  return "$code"
}

hand_on_sigterm() {
  local targets=$2
  [[ $1 == children ]] && targets=$(pgrep -P "$2" || echo "$2")
  # shellcheck disable=SC2086
  kill -TERM $targets 2>/dev/null || true
}

# Prints how many GPUs a program sees. nvidia-smi lists those of the node, whatever CUDA_VISIBLE_DEVICES says; CUDA ignores
# that variable's entries from the first that names no device (-1, Slurm's NoDevFiles).
count_gpus() {
  local entries entry count=0
  if [[ -z "${CUDA_VISIBLE_DEVICES+set}" ]]; then
    nvidia-smi --list-gpus 2>/dev/null | grep -c . || true
    return
  fi
  IFS=, read -ra entries <<<"${CUDA_VISIBLE_DEVICES// /}"
  for entry in ${entries[@]+"${entries[@]}"}; do
    [[ $entry =~ ^([0-9]+$|GPU-|MIG-) ]] || break
    count=$((count + 1))
  done
  echo "$count"
}

# train CFG [--options KEY=VALUE…]: runs train.py in NPROC processes on this node, which may be one of NNODES nodes.
train() {
  local cfg=$1 nproc=${NPROC:-}
  shift
  if [[ -z "$nproc" ]]; then
    nproc=$(count_gpus)
    ((nproc > 0)) || nproc=1
  fi
  if [[ ! $nproc =~ ^[1-9][0-9]*$ ]]; then
    echo "NPROC=$nproc: give the number of processes on each node" >&2
    return 1
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
