"""Trains several configs one after another in the processes that torch.distributed.run started; not a test itself.

Usage: many_runs.py FILE, where FILE holds a JSON list of lists of `--options`.
"""

import json
import sys
from argparse import Namespace
from pathlib import Path

import torch

import lavis
from lavis.common.dist_utils import end_distributed_mode
from lavis.runners.launch import build_runner

CONFIG = Path(lavis.__file__).parent / "projects/instructblip/finetuning/alfworld_ft.yaml"

if __name__ == "__main__":
    torch.set_num_threads(1)
    for options in json.loads(Path(sys.argv[1]).read_text()):
        build_runner(Namespace(cfg_path=str(CONFIG), options=options)).train()
    end_distributed_mode()
