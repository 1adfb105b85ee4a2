"""The learner of a run with `run.learner=decoupled`. Its server starts it; nobody has to.

python -m xrl_alignment.learner RUN_DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import pick_device, set_seed, set_threads
from lavis.common.errors import ConfigError, EmacError, first_sentence
from xrl_alignment.builders.learner import build_training
from xrl_alignment.builders.student import load_student
from xrl_alignment.common.program import run_program
from xrl_alignment.config.loading import load_config
from xrl_alignment.config.schema import DaggerConfig
from xrl_alignment.learner.directory import LearnerDirectory
from xrl_alignment.learner.follower import Follower
from xrl_alignment.runs.directory import RunPaths


class LearnerMemoryError(EmacError, MemoryError):
    """The learner needs more memory than its device has."""


def main() -> None:
    """Learn what the run's journal holds, until its last round is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    paths = RunPaths(parser.parse_args().run_dir)
    if not paths.learner_settings.is_file():
        raise ConfigError(f"{paths.path} has no state/learner.yaml: start dagger_server.py with run.learner=decoupled")
    config = load_config(DaggerConfig, paths.learner_settings, [])
    directory = LearnerDirectory(paths.path)
    bound_kernel_cache()
    keep_freed_memory()
    set_threads(config.run.num_threads)
    set_seed(config.run.seed)
    device = pick_device(config.run.learner_device or config.run.device, "run.learner_device")
    try:
        model, vis_processor = load_student(config.model, device)
        training = build_training(config, directory, model, vis_processor)
        Follower(training, directory, num_rounds=config.run.num_rounds).run()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise LearnerMemoryError(
            f"the learner is out of memory on {device} ({first_sentence(error)}): lower run.batch_size and raise "
            "run.accum_grad_steps, or give it another device (run.learner_device)"
        ) from error
    finally:
        directory.close()


if __name__ == "__main__":
    run_program(main)
