"""Mind2Web: recorded web tasks, played back page by page."""
