"""Everything in this folder runs on the real model."""

from __future__ import annotations

import pytest
from real_model import RealModel, load_real_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def real_model() -> RealModel:
    return load_real_model()
