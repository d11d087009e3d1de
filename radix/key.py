"""Token keys: ids packed four bytes a token, little-endian.

Comparing packed keys is a memcmp; a Python loop per token would be fifty times slower. Knows
neither pages nor trees. Called by the tree, the scheduler and whoever builds a prompt.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def pack(ids: Iterable[int]) -> bytes:
    """Pack token ids, each between 0 and 2**32 - 1; anything else is a ValueError."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers from 0 to 2**32 - 1: {error}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(key: bytes) -> list[int]:
    """The ids of a packed key. A length that is no multiple of four is a ValueError."""
    packed = array("I")
    packed.frombytes(key)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def n_tokens(key: bytes) -> int:
    """How many tokens a packed key holds."""
    return len(key) // TOKEN_BYTES


def common_prefix(a: bytes, b: bytes) -> int:
    """How many leading tokens two packed keys share.

    Halves the span in doubt, so each byte is copied and compared about once: O(n) at memcpy speed.
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high // TOKEN_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low // TOKEN_BYTES
