"""The fixture that tests of sources share."""

from __future__ import annotations

import pytest

from tests.support.surroundings import Surroundings


@pytest.fixture
def surroundings() -> Surroundings:
    return Surroundings()
