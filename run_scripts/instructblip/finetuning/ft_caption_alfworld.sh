#!/usr/bin/env bash
# Fine-tunes on stored transitions in one process for each visible GPU (CUDA_VISIBLE_DEVICES; one process without any).
#
#   run_scripts/instructblip/finetuning/ft_caption_alfworld.sh [--options KEY=VALUE…]
#   qsub [-v NAME=value,…] run_scripts/instructblip/finetuning/ft_caption_alfworld.sh
#
# NPROC is the number of processes, CFG another settings file, PYTHON the interpreter (default: .venv's), OPTIONS more
# settings ("KEY=VALUE KEY=VALUE …"), because qsub passes no arguments on. A job writes into <output_dir>/finetune-<job>,
# and one that is put back into the queue continues there.
# Resources of a job (options on qsub's command line override them):
#PBS -N emac-finetune
#PBS -l ngpus=4
#PBS -l ncpus=48
#PBS -l mem=192GB
#PBS -l walltime=24:00:00
#PBS -l jobfs=100GB
#PBS -r y
#PBS -j oe
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,/^#PBS/{/^#PBS/d; s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 0 ;;
esac
root=$(dirname "${BASH_SOURCE[0]}")/../../..
if [[ ! -f "$root/train.py" ]]; then # a queue runs a copy of this script that lies in its spool folder
  root=${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-}}
  [[ -f "$root/train.py" ]] || { echo "error: submit this with qsub, from the repository" >&2 && exit 2; }
fi
cd "$root"
# shellcheck source=run_scripts/common/job.sh
source run_scripts/common/job.sh
job=${PBS_JOBID:-${SLURM_JOB_ID:-}}
[[ -z "$job" ]] || more=("run.job_id=finetune-$job" run.resume_ckpt_path=latest ${more[@]+"${more[@]}"})
((${#more[@]} == 0)) || set -- "$@" --options "${more[@]}"
train "${CFG:-lavis/projects/instructblip/finetuning/alfworld_ft.yaml}" "$@"
