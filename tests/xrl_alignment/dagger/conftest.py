"""What several tests of the DAgger loop need."""

import pytest

from xrl_alignment.runs.directory import RunDirectory


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path / "run")
    yield made
    made.close()
