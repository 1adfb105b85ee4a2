"""Experts: who labels the states that the policy visits. `make_expert` builds one by its name in a config."""

from __future__ import annotations

from typing import Any

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.experts.base import Expert, Label, act_all

__all__ = ["EXPERTS", "Expert", "Label", "act_all", "make_expert"]

EXPERTS = ("explorer", "handcoded", "planner", "client", "openai")


def make_expert(name: str, *, environment: Any = None, **options: Any) -> Expert:
    """Build the expert called `name`, one for each episode that runs at the same time.

    `explorer` takes the `options` of `Explorer`. `handcoded` and `planner` ask `environment` where one is given (it
    must have been made with `expert=name`); without one they read what the client's expert said, as `client` does.
    `openai` takes the `teacher` that all episodes share (`experts.openai.Teacher`).
    Raises EnvironmentFault for a name that does not exist.
    """
    if name not in EXPERTS:
        raise EnvironmentFault(f"unknown expert {name!r}: choose one of {', '.join(EXPERTS)}")
    if name == "explorer":
        from xrl_alignment.experts.explorer import Explorer

        return Explorer(**options)
    if name == "openai":
        if set(options) != {"teacher"}:
            raise EnvironmentFault("expert 'openai' takes one option, teacher: the endpoint that all episodes share")
        from xrl_alignment.experts.llm.teacher import OpenAIExpert

        return OpenAIExpert(options["teacher"])
    if options:
        raise EnvironmentFault(f"expert {name!r} takes no options, got {', '.join(options)}")
    from xrl_alignment.experts.alfworld import AlfworldExpert, ClientExpert

    if environment is not None and name != "client":
        return AlfworldExpert(environment, name)
    return ClientExpert(name)
