"""The learner's program, in one process: device, model, learner, and the journal to its end."""

from __future__ import annotations

import torch

from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import DEVICE_LOST, pick_device, set_seed, set_threads
from lavis.common.dist_utils import end_distributed_mode, init_distributed_mode
from lavis.common.errors import EmacError, first_sentence
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger.building import build_training
from xrl_alignment.dagger.decoupled.directory import LearnerDirectory
from xrl_alignment.dagger.decoupled.follower import Follower
from xrl_alignment.runs.directory import RunPaths
from xrl_alignment.settings.schema import DaggerConfig


class LearnerMemoryError(EmacError, MemoryError):
    """The learner needs more memory than its device has."""


class LearnerDeviceError(EmacError, RuntimeError):
    """The learner's device computes no more."""


def learn(config: DaggerConfig, paths: RunPaths) -> None:
    """Learn what the run's journal holds, until its last round is over; in a group, as one of its processes.

    Raises LearnerMemoryError, LearnerDeviceError, and what `Follower.run` raises.
    """
    # First, because libraries read these limits with their first operation.
    bound_kernel_cache()
    keep_freed_memory()
    set_threads(config.run.num_threads)
    set_seed(config.run.seed)
    device = pick_device(config.run.learner_device or config.run.device, "run.learner_device")
    init_distributed_mode(device=str(device), world_size=config.run.learner_processes)
    directory = LearnerDirectory(paths.path)
    try:
        model, vis_processor = load_student(config.model, device)
        training = build_training(config, directory, model, vis_processor)
        run = config.run
        Follower(
            training,
            directory,
            num_rounds=run.num_rounds,
            updates=run.train_iters_per_epoch,
            max_staleness=run.max_staleness,
        ).run()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise LearnerMemoryError(
            f"the learner is out of memory on {device} ({first_sentence(error)}): lower run.batch_size and raise "
            "run.accum_grad_steps, give it another device (run.learner_device), or shard the model over several "
            "(run.learner_fsdp)"
        ) from error
    except DEVICE_LOST as error:
        raise LearnerDeviceError(
            f"the learner lost its device {device} ({first_sentence(error)}): continue when the device works again, or "
            "on another one (run.learner_device)"
        ) from error
    finally:
        directory.close()
        end_distributed_mode()
