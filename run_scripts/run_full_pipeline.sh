#!/usr/bin/env bash
# Runs both phases: behavioural cloning, then DPO, which starts from its newest checkpoint and has it as reference policy.
#
#   run_scripts/run_full_pipeline.sh [--tmux | --background] SIZE [--options KEY=VALUE…] [--resume RUN_DIR]
#
# SIZE names the files configs/dagger/SIZE_{bc,dpo}.yaml: demo; small, paper (offline); small_original, paper_original
# (AI2-THOR and a language model as teacher, as in the original); small_train, paper_train (offline, on the split train).
# For the other arguments see run_dagger.sh; --dry-run only says what this machine lacks for them.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

mode=()
case "${1:-}" in
  --tmux | --background) mode=("$1") && shift ;;
  -h | --help | "") sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 0 ;;
esac

sizes=$(cd "$here/../configs/dagger" && for file in *_bc.yaml; do echo -n "${file%_bc.yaml} "; done)
size=${1:?"error: name a size: $sizes"} && shift
for phase in bc dpo; do
  if [[ ! -f "$here/../configs/dagger/${size}_$phase.yaml" ]]; then
    echo "error: there is no configs/dagger/${size}_$phase.yaml; sizes are ${sizes% }" >&2 && exit 2
  fi
done
exec "$here/run_dagger.sh" ${mode[@]+"${mode[@]}"} --cfg-path "configs/dagger/${size}_bc.yaml" "configs/dagger/${size}_dpo.yaml" "$@"
