"""Branchwork: programs that call a language model many times, made cheap by one radix tree."""
