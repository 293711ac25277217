"""τ²-bench: adapter, conversation driver, simulated customers."""
