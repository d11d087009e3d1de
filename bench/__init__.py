"""Measurements. Loaded by name from the command line; nothing imports it."""
