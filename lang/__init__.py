"""What can be asked of a language model, and the programs that ask it.

Knows no torch, no tokenizer and no cache: it makes `request.Request` values and hands them to a
`client.Client`. The public face (`branchwork/__init__.py`) re-exports what users need.
"""
