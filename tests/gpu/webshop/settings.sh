dev=webshop_generated_dev panels=tests/gpu/webshop/panel.json concurrency=128 samples=1 turns=8 turn_tokens=64
chars="--first-observation-chars 600 --observation-chars 1600"
experts() { cope data experts webshop --panel tests/gpu/webshop/train.json --concurrency 8 $limits --out "$runs/experts"; }
