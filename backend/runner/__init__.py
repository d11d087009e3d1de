"""Turns a step plan (integers) into tensors, runs the model and samples."""
