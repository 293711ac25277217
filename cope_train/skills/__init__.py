"""Skill co-evolution: one policy acts and also extracts skills from its episodes (objectives.md §8)."""
