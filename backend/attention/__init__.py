"""Attention over paged KV. The plain-torch reference is the oracle for every other backend."""
