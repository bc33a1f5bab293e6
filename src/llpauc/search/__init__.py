"""Searching for settings: `tune` and `auto`."""
