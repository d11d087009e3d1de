"""The radix tree of KV pages: integers and order only.

No tensors, no clock, no threads, no knowledge of requests. The scheduler is its one caller,
through `cache.PrefixCache`.
"""
