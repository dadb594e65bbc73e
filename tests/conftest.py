"""Fixtures that more than one test file uses."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases, golden answers and data sets beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("no folder ../shared beside the repository: its cases cannot be checked")
    return folder
