"""Checks of the machine: Python, libraries, GPU, disk, port, keys.

At the top it imports only the standard library, because the doctor has to run even if libraries are missing.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from xrl_alignment.common.network import process_on_port
from xrl_alignment.lab.doctor.finding import Finding

OLDEST_PYTHON = (3, 10)
# Module -> the distribution that brings it, which may have another name.
LIBRARIES = {
    "alfworld": "alfworld",
    "filelock": "filelock",
    "gymnasium": "gymnasium",
    "h5py": "h5py",
    "jinja2": "jinja2",
    "lz4": "lz4",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "omegaconf": "omegaconf",
    "PIL": "pillow",
    "psutil": "psutil",
    "rich": "rich",
    "safetensors": "safetensors",
    "tenacity": "tenacity",
    "tensorboard": "tensorboard",
    "textworld": "textworld",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "transformers": "transformers",
    "yaml": "pyyaml",
}
# Module -> the extra of this project that brings it, and what it is for.
EXTRAS = {
    "ray": ("ray", "rollouts on many machines"),
    "vllm": ("vllm", "policy.name=vllm (best in an environment of its own: make vllm-env)"),
    "ai2thor": ("thor", "environment.name=thor"),
    "fastapi": ("policy-server", "the policy server"),
    "bitsandbytes": ("quantization", "the policy server's model.quantization"),
}
KEYS = ("OPENAI_API_KEY",)  # names only; values are read only to see whether they are empty
SPACE_NEEDED = 2 * 1024**3  # bytes: the demo's run directories, generated games, checkpoints
LARGE_MODEL = 16 * 1024**3  # bytes of GPU memory that a frozen 7B model takes in half precision


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Python's version."""
    text = ".".join(map(str, version))
    if version >= OLDEST_PYTHON:
        return Finding("ok", "python", text)
    return Finding("fail", "python", text, f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")


def check_libraries(libraries: Mapping[str, str] = LIBRARIES) -> Iterator[Finding]:
    """The libraries that every run needs (module and distribution name): each that is missing, and all versions."""
    # `find_spec` looks for a module without importing it: a broken one must not end the doctor.
    found = []
    for module, distribution in libraries.items():
        if importlib.util.find_spec(module) is None:
            how = "run `make install`, or `pip install -e '.[all]' -c constraints.txt`"
            yield Finding("fail", distribution, "not installed", how)
        else:
            found.append(f"{distribution} {version_of(distribution)}")
    if found:
        yield Finding("ok", "libraries", ", ".join(found))


def version_of(distribution: str) -> str:
    """The installed version of a package."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(version unknown)"


def check_device(*, large: bool = False) -> Finding:
    """The GPU that torch sees, and its memory; `large`: the model to be run needs one."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("fail", "device", f"torch cannot be imported ({error})", "install torch again")
    if not torch.cuda.is_available():
        from lavis.common.devices import cpu_multiplies_bfloat16

        multiplies = "it multiplies bfloat16" if cpu_multiplies_bfloat16() else "no instructions for bfloat16"
        text = f"CPU only ({multiplies}): enough for models such as tiny; a 7B model needs a GPU"
        return Finding("warn" if large else "ok", "device", text)
    # Free memory counts: another process may hold most of the card.
    free, total = torch.cuda.mem_get_info()
    text = f"{torch.cuda.get_device_name()}, {free / 1024**3:.0f} of {total / 1024**3:.0f} GiB free"
    if free < LARGE_MODEL:
        return Finding("warn", "device", text, "a 7B model needs 16 GiB; model tiny runs")
    return Finding("ok", "device", text)


def check_disk(folder: Path = Path(), needed: int = SPACE_NEEDED) -> Finding:
    """Whether `folder` has room for run directories; `needed` in bytes."""
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB free in {folder.resolve()}"
    if free >= needed:
        return Finding("ok", "disk", text)
    return Finding("fail", "disk", text, f"free {needed / 1024**3:.0f} GiB, or set run.output_dir to a larger disk")


def check_cache() -> Finding:
    """Whether the cache, to which generated games are written on first use, can be written."""
    from alfworld_native.games import cache_root
    from lavis.common.errors import ConfigError
    from lavis.common.files import writable

    folder = cache_root()
    try:
        writable("the cache", folder, folder=True)
    except (ConfigError, OSError) as error:
        reason = getattr(error, "strerror", "") or "it cannot be written"
        advice = "generated games need it: set XDG_CACHE_HOME to a folder of yours"
        return Finding("warn", "cache", f"{folder}: {reason}", advice)
    return Finding("ok", "cache", str(folder))


def check_port(port: int) -> Finding:
    """Whether a server could listen on `port`, and which process holds it if not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the server does: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            fault = error
        else:
            return Finding("ok", f"port {port}", "free")
    holder = process_on_port(port)
    detail = f"held by {holder}" if holder else f"not free ({fault})"
    return Finding("fail", f"port {port}", detail, "stop that process, or choose another with server.port=…")


def check_keys(environ: Mapping[str, str], names: Iterable[str] = KEYS) -> Iterator[Finding]:
    """Whether API keys are set; a key itself is never shown."""
    for name in names:
        if environ.get(name):
            yield Finding("ok", name, "set")
        else:
            yield Finding("ok", name, "not set; only expert.name=openai against a paid endpoint needs it")


def check_extras() -> Iterator[Finding]:
    """Optional packages, by module: the extra that brings it, and what it is for."""
    for module, (extra, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module) is not None:
            yield Finding("ok", module, version_of(module))
        else:
            yield Finding("ok", module, f"not installed; for {purpose}: pip install -e '.[{extra}]'")
