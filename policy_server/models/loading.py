"""From `ModelSettings` to a loaded model."""

from __future__ import annotations

import torch

from policy_server.models.transformers_model import TransformersModel
from policy_server.models.vision_model import ModelLoadError, VisionModel
from policy_server.settings import ModelSettings


def load_model(settings: ModelSettings) -> VisionModel:
    """Load the model that `settings` name.

    Raises an EmacError that says how to fix it: ConfigError (a path or option that cannot be used), ModelLoadError (no
    such model, or too little GPU memory), MissingExtraError (a package is not installed).
    """
    try:
        if not any(settings.student):
            return TransformersModel(settings)
        from policy_server.models.student import StudentModel  # here: the others need nothing of the online part

        return StudentModel(settings)
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"model.path={settings.path} does not fit into the memory of {settings.device}: choose a smaller model, "
            "model.quantization=int4, or model.device=cpu"
        ) from error
