"""Worker processes that step host environments in parallel."""
