"""Worker processes: started, warmed, watched and killed. Knows nothing of HTTP or of the session rules."""
