"""`python -m xrl_alignment.make_prompts`: the command of `pretraining/prompts.py`."""

from xrl_alignment.common.program import run_program
from xrl_alignment.pretraining.prompts import main

if __name__ == "__main__":
    run_program(main)
