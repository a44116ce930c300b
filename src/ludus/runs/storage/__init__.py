"""Storage that follows a run: its folder is copied elsewhere while it trains, and brought back on another machine."""
