"""Imports that the original's users have in their code still work."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "xrl_alignment.utils",
            ["EnvironmentHistory", "ReplayBuffer", "DPOReplayBuffer", "save_checkpoint"]
            + ["llm_forward", "get_chat", "get_completion"],
        ),
        ("post_processing", ["action_postprocess", "process_ob"]),
        ("generate_reflections", ["main", "update_memory"]),
    ],
)
def test_the_originals_imports(module, names):
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted(names)
    assert all(callable(getattr(loaded, name)) for name in names)
