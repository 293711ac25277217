"""Language agents in long interactive tasks, as Gymnasium environments."""
