"""Tasks: what is trained and how it is measured. `setup_task(cfg)` builds the one that `run.task` names."""

from __future__ import annotations

from omegaconf.errors import OmegaConfBaseException

from lavis.common.config import Config
from lavis.common.errors import ConfigError, first_sentence
from lavis.common.registry import registry
from lavis.tasks.alfworld_action import AlfworldActionTask
from lavis.tasks.base_task import BaseTask
from lavis.tasks.captioning import CaptionTask
from lavis.tasks.student_task import StudentTask

__all__ = ["AlfworldActionTask", "BaseTask", "CaptionTask", "StudentTask", "setup_task", "task_class"]


def setup_task(cfg: Config) -> BaseTask:
    """The task registered as `run.task`."""
    return task_class(cfg).setup_task(cfg=cfg)


def task_class(cfg: Config) -> type[BaseTask]:
    """The class registered as `run.task`; ConfigError if the config names none."""
    try:
        name = cfg.run_cfg.get("task")
    except OmegaConfBaseException as error:  # a reference that leads nowhere
        raise ConfigError(f"run.task: {first_sentence(error)}") from error
    if not name:
        raise ConfigError("the config has no run.task")
    return registry.get_task_class(name)
