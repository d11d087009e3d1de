"""A counter-based random number: a pure function of (seed, position).

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), the
generator GPU libraries offer too, so a device sampler can draw the same numbers. No state, no
stream: who else draws, and in what order, cannot matter. Called by `sampler.py`.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds over four 32-bit words. Bijective in `counter` for every `key`."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (right >> 32) ^ b ^ k0, right & _MASK, (left >> 32) ^ d ^ k1, left & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return a, b, c, d


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) on a grid of 2**-53, from a 64-bit seed and a 64-bit position."""
    key = (seed & _MASK, (seed >> 32) & _MASK)
    a, b, _, _ = philox((position & _MASK, (position >> 32) & _MASK, 0, 0), key)
    return float(((a << 32 | b) >> 11) * 2.0**-53)
