"""Offline fine-tuning on stored transitions, in one process or in many.

    python train.py --cfg-path lavis/projects/instructblip/finetuning/alfworld_ft.yaml
    python -m torch.distributed.run --nproc_per_node=4 train.py --cfg-path … --options run.batch_size_train=4

`--options run.resume_ckpt_path=CHECKPOINT` resumes a run at that checkpoint. On SIGTERM (a queue's time limit) the run
writes one and ends with exit code 0. docs/offline.md describes data, settings and outputs.
"""

from __future__ import annotations

if __name__ == "__main__":
    import lavis  # noqa: F401  (before all else: it says in one line what this interpreter lacks)

import argparse
from pathlib import Path

from lavis.common.program import parse_args, read_first, run_program
from lavis.models.sections import check_config


def read_command_line() -> argparse.Namespace:
    """The arguments; ConfigError for settings that no run could use."""
    example = "lavis/projects/instructblip/finetuning/alfworld_ft.yaml"
    arguments = parse_args(__doc__, settings="docs/offline.md", example=example)
    check_config(arguments.cfg_path, arguments.options)
    return arguments


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes in the settings are answered at once.
    read_first(read_command_line)

from lavis.common.allocator import bound_kernel_cache
from lavis.common.dist_utils import end_distributed_mode, is_main_process
from lavis.runners.launch import build_runner
from lavis.runners.runner_base import Stopped
from xrl_alignment.lab import lavis_task  # noqa: F401  (registers the task alfworld_episode and the actions' normaliser)
from xrl_alignment.lab.ending import offline_command


def main() -> None:
    """Parse, build, train."""
    arguments = read_command_line()
    bound_kernel_cache()
    try:
        runner = build_runner(arguments)
        runner.train()
        if is_main_process() and (checkpoint := runner.final_checkpoint):
            next_step = offline_command(runner.config.to_dict(), Path(checkpoint))
            print(f"checkpoint: {checkpoint}\nevaluate it: {next_step}", flush=True)
    except Stopped as stop:
        if is_main_process():
            print(stop, flush=True)
    finally:
        end_distributed_mode()


if __name__ == "__main__":
    run_program(main)
