"""Family name -> decoder. One decoder runs all of `family.py`, driven by the facts in `ModelSpec`.

Called by `runner/load.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ...lang.errors import UnsupportedModel
from .decoder import Decoder
from .family import FAMILIES
from .spec import ModelSpec
from .weights import Weights

Builder = Callable[[ModelSpec, Weights], Decoder]

BUILDERS: dict[str, Builder] = {family.name: Decoder for family in FAMILIES}


def build_decoder(spec: ModelSpec, weights: Weights) -> Decoder:
    """The decoder for `spec.architecture`; UnsupportedModel lists what there is."""
    builder = BUILDERS.get(spec.architecture)
    if builder is None:
        raise UnsupportedModel(
            f"architecture {spec.architecture!r} is not supported "
            f"(supported: {', '.join(BUILDERS)})"
        )
    return builder(spec, weights)
