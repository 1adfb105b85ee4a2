"""Writes the adapters of a run's checkpoint as peft does, for `PeftModel.from_pretrained`, vLLM and the hub.

    python -m lavis.models.hf_vlm.export OUT --checkpoint RUN/emma_checkpoint_0.pth --options path=FOLDER lora_rank=8

    OUT/
      adapter_model.safetensors adapter_config.json README.md    (peft's own)
      emac_base.json                                             their base and their games (`lavis.models.folder_note`)

`--options` are the keys of the run's `model:` section (its config.yaml has them), with or without `model.` in front. A
folder of peft goes to the hub with `hf upload NAME OUT`, and into another run with `model.pretrained=OUT`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lavis.common.errors import EmacError, MissingFileError
from lavis.common.program import read_first, run_program


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; MissingFileError if the checkpoint is not there."""
    parser = argparse.ArgumentParser(description="Write a checkpoint's adapters in peft's format.")
    parser.add_argument("out", help="the folder")
    parser.add_argument("--checkpoint", required=True, help="a run's checkpoint")
    parser.add_argument(
        "--options", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="keys of the model: section"
    )
    given = parser.parse_args(argv)
    if "://" not in given.checkpoint and not Path(given.checkpoint).exists():
        raise MissingFileError(f"--checkpoint: no file {given.checkpoint}")
    return given


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

from lavis.common.config import merged, plain, read_option
from lavis.common.files import writable
from lavis.models.frozen_base import check_base
from lavis.models.hf_vlm.hf_vlm import HfVlm
from lavis.models.played import games_of_weights


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder; the exit code."""
    try:
        given = parse_arguments(argv)
        settings = plain(merged({}, *(read_option(option.removeprefix("model.")) for option in given.options)))
        # Whatever the options say: without `load_pretrained` untrained adapters would be written.
        settings |= {"pretrained": given.checkpoint, "load_pretrained": True, "ref_pretrained": ""}
        writable("OUT", Path(given.out), folder=True)  # before the model is loaded
        model = HfVlm.from_config(settings)
        model.require_sources()
        check_base(model, given.checkpoint)
        model.save_adapter(given.out, played=games_of_weights(settings).as_dict())
    except EmacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{given.out}: {sum(value.numel() for value in model.trainable_state_dict().values()):,} weights")
    return 0


if __name__ == "__main__":
    run_program(main)
