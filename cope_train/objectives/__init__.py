"""The paper's objectives as functions on tensors; one file an idea. They know neither TRL nor environments."""
