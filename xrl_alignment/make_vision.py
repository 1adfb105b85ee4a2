"""`python -m xrl_alignment.make_vision`: the command of `pretraining/vision.py`."""

from xrl_alignment.common.program import run_program
from xrl_alignment.pretraining.vision import main

if __name__ == "__main__":
    run_program(main)
