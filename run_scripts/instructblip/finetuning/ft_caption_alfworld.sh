#!/usr/bin/env bash
# Fine-tunes on stored transitions with all GPUs of this machine (in one process if it has none).
#
#   run_scripts/instructblip/finetuning/ft_caption_alfworld.sh [--options KEY=VALUE…]
#
# NPROC is the number of processes, CFG another settings file, PYTHON the interpreter (default: .venv's).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
case "${1:-}" in
  -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 0 ;;
esac
# shellcheck source=run_scripts/common/job.sh
source run_scripts/common/job.sh
train "${CFG:-lavis/projects/instructblip/finetuning/alfworld_ft.yaml}" "$@"
