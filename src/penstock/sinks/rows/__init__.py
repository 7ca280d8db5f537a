"""Sinks of rows that other people write: rows come typed, and reduced to their net effect per key."""
