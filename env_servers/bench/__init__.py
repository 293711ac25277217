"""Measures the service itself: latency, throughput, capacity. Run `python -m env_servers.bench`."""
