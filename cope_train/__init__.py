"""GRPO for language agents in long tasks, on TRL, with the objectives of the paper as switchable parts of one loss."""
