"""The service's front: HTTP, sessions, leases. Holds no benchmark code; see `docs/protocol.md`."""
