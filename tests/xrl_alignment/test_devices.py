"""Devices that settings name."""

import pytest
import torch

from xrl_alignment.config import ConfigError
from xrl_alignment.devices import pick_device

CPU = torch.device("cpu")


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU == pick_device("cpu")
    with pytest.raises(ConfigError, match="run.device is cuda:1, but torch .* sees no GPU"):
        pick_device("cuda:1")
