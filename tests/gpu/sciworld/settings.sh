dev=tests/gpu/sciworld/dev.json dev_samples=2 panels=tests/gpu/sciworld/panel.json concurrency=131 samples=2 turns=16 turn_tokens=24
chars="--first-observation-chars 600 --observation-chars 300"
types="find-living-thing find-non-living-thing find-plant find-animal lifespan-longest-lived lifespan-shortest-lived
lifespan-longest-lived-then-shortest-lived power-component"
experts() {
  for type in $types; do
    cope data experts sciworld --category "$type" --limit 40 --option simplifications=easy $limits --out "$runs/experts/$type"
  done
  python3 tests/gpu/skill_talk.py "$runs/experts/*-*/experts.jsonl" --system-prompt $here/system_prompt.txt --out "$runs/experts/skills"
}
