"""`python -m xrl_alignment.make_planner`: the command of `pretraining/planner.py`."""

from xrl_alignment.common.program import run_program
from xrl_alignment.pretraining.planner import main

if __name__ == "__main__":
    run_program(main)
