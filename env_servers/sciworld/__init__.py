"""ScienceWorld: the adapter, its task table and its lock."""
