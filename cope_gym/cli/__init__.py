"""The `cope` command."""
