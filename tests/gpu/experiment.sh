#!/usr/bin/env bash
# One part of an experiment (docs/results/) with the product's own commands, from the repository's root.
#   experiment.sh ENV experts              the training tasks' solutions (CPU, some minutes)
#   experiment.sh ENV clone                the start of all arms
#   experiment.sh ENV train ARM SEED [LR]  one arm; the same command goes on after an interruption, on another machine with its folder
#   experiment.sh ENV dev LR               stock GRPO with this learning rate, evaluated on the development panel: how LR is chosen
#   experiment.sh ENV eval ARM SEED [STEP] the panels by `cope eval`; ARM `start` is the clone. Training has evaluated its arm itself.
# ENV: sciworld, alfworld, webshop; ARM: grpo, af, af_te, placebo, skills (sciworld only). SKILLS=FILE: `eval` plays with a bank of skills.
# START=EPOCHS: a clone of as many epochs, in a folder of its own, and what starts from it. PANELS=FILE: `eval` on another panel.
set -euo pipefail
env=${1:-} part=${2:-} arm=${3:-} seed=${4:-}
here=tests/gpu/$env runs=runs/$env start=${START:-}
clone=runs/$env/clone${start:+-$start}
if [ ! -f "$here/settings.sh" ]; then sed -n 2,9p "$0"; exit 2; fi
# Of the benchmark: `experts`, and what `cope eval` has to be told that arm.yaml tells `cope train`.
source "$here/settings.sh"
limits="$chars --system-prompt $here/system_prompt.txt"
af="forecast=true forecast_coef=0.02 forecast_horizon=3 forecast_gate=wins forecast_skip_invalid=true"
# 4 sources a step, 4 skills of each, each skill on 3 other tasks: 64 rows, as the other arms have.
skills="skills=true skill_count=4 skill_tasks=3 skill_encoder=bm25 skill_same_category=true skill_tokens=160 skill_card_tokens=200
skill_history_chars=3000 num_generations=4"
case "$part" in
experts) experts ;;
clone) cope train "$here/clone.yaml" output_dir="$clone" ${start:+num_train_epochs=$start} ;;
train)
  case "$arm" in
  grpo) add="" ;;
  af) add=$af ;;
  af_te) add="$af ensemble=true ensemble_coef=0.1 ensemble_eta=0.5" ;;
  placebo) add="$af forecast_derange=true" ;;
  skills) add=$skills ;;
  *) echo "there is no arm $arm" >&2; exit 2 ;;
  esac
  folder=$runs/$arm-$seed
  resume=$(ls -d "$folder"/checkpoint-* >/dev/null 2>&1 && echo resume_from_checkpoint=true || true)
  cope train "$here/arm.yaml" model_name_or_path="$clone" output_dir="$folder" seed="$seed" ${5:+learning_rate=$5} $add $resume ;;
dev)
  cope train "$here/arm.yaml" model_name_or_path="$clone" output_dir="$runs/dev-${start:+$start-}$arm" seed=0 learning_rate="$arm" \
    eval_panel="$dev" eval_samples=${dev_samples:-1} max_steps=20 eval_steps=20 ;;
eval)
  model=$runs/$arm-$seed/checkpoint-${5:-40}
  if [ "$arm" = start ]; then model=$clone; fi
  for panel in ${PANELS:-$panels}; do
    cope eval --panel "$panel" --policy vllm:"$model" --samples "$samples" --max-turns "$turns" --concurrency "$concurrency" --seed "$seed" \
      --set max_turn_tokens="$turn_tokens" --set max_model_len=4096 --set gpu_memory_utilization=0.1 --set kv_cache_memory_bytes=8000000000 --set dtype=bfloat16 $limits \
      ${SKILLS:+--skills "$SKILLS"} --out "$runs/evaluations/$arm${start:+_$start}-$seed${SKILLS:+_with_skills}${several:+_$(basename "$panel" .json)}"
  done ;;
*) sed -n 2,9p "$0"; exit 2 ;;
esac
