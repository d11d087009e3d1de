"""What machines read is one whole JSON document, whatever a program returned."""

from __future__ import annotations

import json
import math

import pytest

from branchwork.server.show import print_json


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
        ({(1, 2): "tuple key"}, {"(1, 2)": "tuple key"}),
        ([math.nan, math.inf], ["nan", "inf"]),
        ({"a": {1}}, {"a": [1]}),
        (object, "<class 'object'>"),
    ],
)
def test_any_value_becomes_one_document(
    value: object, read: object, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json(value)
    assert json.loads(capsys.readouterr().out) == read


def test_a_list_that_holds_itself_ends(capsys: pytest.CaptureFixture[str]) -> None:
    value: list[object] = [1]
    value.append(value)
    print_json(value)
    assert json.loads(capsys.readouterr().out)[0] == 1
