"""AppWorld: adapter, contained sessions, and a small world of our own."""
