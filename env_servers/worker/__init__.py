"""The process that runs one benchmark's adapter, under the benchmark's own interpreter. Standard library only."""
