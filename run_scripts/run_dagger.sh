#!/usr/bin/env bash
# Runs one training phase, or several in a row: server and client as two processes, until the run directory has DONE.
#
#   run_scripts/run_dagger.sh [--tmux | --background] --cfg-path FILE… [--options KEY=VALUE…] [--resume RUN_DIR]
#
#   --tmux        in a new tmux session "emac"; its window stays open after the run, so that you can read errors
#   --background  detached from this terminal, with its output in output/background-<time>.log
#
# All other arguments go to `python -m xrl_alignment.pipeline`: --dry-run says what this machine lacks for the run, and
# starts nothing. With environment.name=thor and no display, xvfb-run gives the client one.
# PYTHON names the interpreter (default: .venv's).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=foreground
case "${1:-}" in
  --tmux | --background) mode=${1#--} && shift ;;
  -h | --help | "") sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 0 ;;
esac

if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=.venv/bin/python
fi
command=("$PYTHON" -m xrl_alignment.pipeline "$@")

case "$mode" in
  foreground) exec "${command[@]}" ;;
  tmux)
    command -v tmux >/dev/null || { echo "error: tmux is not installed; try --background" >&2 && exit 2; }
    # A tmux server that runs already gives a session the environment that it was started with: no OPENAI_API_KEY, no
    # CUDA_VISIBLE_DEVICES of this shell. A file that only this user may read brings them over; the session removes it.
    environment=$(mktemp)
    (unset TERM TMUX TMUX_PANE && export -p) >"$environment"
    printf -v take 'source %q; rm %q' "$environment" "$environment"
    tmux new-session -d -s emac bash -c \
      "$take; $(printf '%q ' "${command[@]}"); echo \"exit code \$?\"; exec bash" ||
      { rm "$environment" && exit 2; }
    echo "started; look with: tmux attach -t emac"
    ;;
  background)
    mkdir -p output
    log=output/background-$(date +%Y%m%d-%H%M%S)-$$.log
    nohup "${command[@]}" >"$log" 2>&1 </dev/null &
    echo "started as process $!; look with: tail -f $log; stop with: kill $!"
    ;;
esac
