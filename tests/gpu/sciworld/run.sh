#!/usr/bin/env bash
# One part of the ScienceWorld experiment (docs/results/sciworld.md) with the product's own commands, from the repository's root.
#   run.sh experts              the training tasks' solutions (CPU, some minutes)
#   run.sh clone                the start of all arms
#   run.sh train ARM SEED       one arm; the same command goes on after an interruption, on another machine with its folder
#   run.sh eval ARM SEED [STEP] the panel by `cope eval`; ARM `start` is the clone. Training has evaluated its arm itself.
# ARM: grpo, af, af_te, placebo
set -euo pipefail
here=tests/gpu/sciworld runs=runs/sciworld
types="find-living-thing find-non-living-thing find-plant find-animal lifespan-longest-lived lifespan-shortest-lived
lifespan-longest-lived-then-shortest-lived power-component"
limits="--first-observation-chars 600 --observation-chars 300 --system-prompt $here/system_prompt.txt"
af="forecast=true forecast_coef=0.02 forecast_horizon=3 forecast_gate=wins forecast_skip_invalid=true"
case "$1" in
experts)
  for type in $types; do
    cope data experts sciworld --category "$type" --limit 40 --option simplifications=easy $limits --out "$runs/experts/$type"
  done ;;
clone) cope train $here/clone.yaml ;;
train)
  case "$2" in
  grpo) add="" ;;
  af) add=$af ;;
  af_te) add="$af ensemble=true ensemble_coef=0.1 ensemble_eta=0.5" ;;
  placebo) add="$af forecast_derange=true" ;;
  *) echo "there is no arm $2" >&2; exit 2 ;;
  esac
  folder=$runs/$2-$3
  resume=$(ls -d "$folder"/checkpoint-* >/dev/null 2>&1 && echo resume_from_checkpoint=true || true)
  cope train $here/arm.yaml output_dir="$folder" seed="$3" $add $resume ;;
eval)
  model=$runs/$2-$3/checkpoint-${4:-20}
  if [ "$2" = start ]; then model=$runs/clone; fi
  cope eval --panel $here/panel.json --policy vllm:"$model" --samples 2 --max-turns 16 --concurrency 131 --seed "$3" \
    --set max_turn_tokens=24 --set max_model_len=4096 --set gpu_memory_utilization=0.1 --set kv_cache_memory_bytes=8000000000 --set dtype=bfloat16 $limits --out "$runs/evaluations/$2-$3" ;;
*) sed -n 2,7p "$0"; exit 2 ;;
esac
