dev=tests/gpu/alfworld/dev.json panels="alfworld_valid_seen alfworld_valid_unseen" several=yes concurrency=140 samples=1 turns=25 turn_tokens=24
chars="--first-observation-chars 1200 --observation-chars 300"
experts() { python3 tests/gpu/alfworld/experts.py "$runs/experts"; }
