"""The page of a table of scores: `python -m xrl_alignment.evaluation output/evaluate/scores.jsonl --out scores.md`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lavis.common.errors import ConfigError
from lavis.common.files import write_text
from lavis.common.program import run_program
from xrl_alignment.play.evaluation.page import page
from xrl_alignment.play.evaluation.scores import read_table


def main(arguments: list[str] | None = None) -> int:
    """Print the page, or write it to `--out`.

    FileError for a table that cannot be read, ConfigError if `--out` is one of the tables.
    """
    parser = argparse.ArgumentParser(prog="python -m xrl_alignment.evaluation", description=__doc__)
    parser.add_argument("table", nargs="+", type=Path, help="files that evaluate.py appended results to (run.table)")
    parser.add_argument("--out", type=Path, help="write the Markdown to this file instead of printing it")
    options = parser.parse_args(arguments)
    if options.out and options.out.resolve() in [table.resolve() for table in options.table]:
        raise ConfigError(f"--out {options.out} is a table of scores, which the page would replace: give another file")
    text = page(read_table(options.table))
    if options.out:
        write_text(options.out, text)
        print(f"written to {options.out}")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    run_program(main)
