"""A small world of our own in AppWorld's data layout, for development and tests: the official data is a download."""
