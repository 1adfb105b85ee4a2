"""Games and environments of an `environment:` section."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from alfworld_native import choose_games, make_environment
from alfworld_native.base import Environment, Game
from alfworld_native.household.mixture import checked_mixture
from xrl_alignment.common.choices import CLIENT_EXPERTS
from xrl_alignment.settings.schema import DaggerConfig, EnvironmentConfig


def games_of(settings: EnvironmentConfig, number: int) -> list[Game]:
    """`number` games of an `environment:` section; household games are generated on first use."""
    return choose_games(
        settings.name,
        settings.split,
        num=number,
        data=settings.data or None,
        seed=settings.seed,
        num_train=settings.num_train,
        num_heldout=settings.num_heldout,
        levels=checked_mixture(settings.levels) if settings.levels else None,
    )


def client_arguments(config: DaggerConfig) -> list[str]:
    """The arguments of `alfworld_client.py` that play what `config` asks for (host and port apart)."""
    environment = config.environment
    arguments = ["--env", environment.name, "--split", environment.split, "--num-envs", str(config.run.num_envs)]
    arguments += ["--num-workers", str(config.run.num_workers), "--max-steps", str(config.run.max_steps)]
    arguments += ["--seed", str(environment.seed)]
    expert = config.expert.name if config.run.run_training else ""  # an evaluation asks none
    if expert in CLIENT_EXPERTS:
        arguments += ["--expert", expert]
    elif expert == "client":
        # These two engines bring ALFWorld's own expert; beside the native one the explorer needs nothing more.
        arguments += ["--expert", "handcoded" if environment.name in ("textworld", "thor") else "explorer"]
    # From here on only what differs from the client's own defaults, so that the command line stays readable.
    if environment.data:
        arguments += ["--data", environment.data]
    if environment.name == "household":
        arguments += ["--num-train", str(environment.num_train), "--num-heldout", str(environment.num_heldout)]
    if environment.name_by != "number":
        arguments += ["--name-by", environment.name_by]
    if environment.levels:
        arguments += ["--levels", *(f"{level}={weight}" for level, weight in environment.levels.items())]
    if not environment.show_ids:
        arguments.append("--no-show-ids")
    if environment.camera != "front":
        arguments += ["--camera", environment.camera]
    if environment.blank_frames:
        arguments.append("--blank-frames")
    if environment.other_frames:
        arguments.append("--other-frames")
    if environment.image_severity:
        arguments += ["--image-noise", environment.image_noise, "--image-severity", str(environment.image_severity)]
    if environment.text_noise:
        arguments += ["--text-noise", str(environment.text_noise)]
    return arguments


def environment_factory(
    settings: EnvironmentConfig, max_steps: int, expert: str | None = None
) -> Callable[[], Environment]:
    """Makes environments of an `environment:` section; `expert` is one that is computed beside the game, or None."""
    return partial(
        make_environment,
        settings.name,
        max_steps=max_steps,
        show_ids=settings.show_ids,
        expert=expert,
        name_by=settings.name_by,
        camera=settings.camera,
        other_frames=settings.other_frames,
        image_noise=settings.image_noise,
        image_severity=settings.image_severity,
        text_noise=settings.text_noise,
        seed=settings.seed,
    )
