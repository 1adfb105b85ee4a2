"""`python -m xrl_alignment.make_backbone`: the command of `pretraining/backbone.py`."""

from xrl_alignment.common.program import run_program
from xrl_alignment.pretraining.backbone import main

if __name__ == "__main__":
    run_program(main)
