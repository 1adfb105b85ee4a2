"""The policy server: loads a vision-language model once and answers many games with actions.

    python policy_server/qwen_policy_server.py                                   # Qwen2-VL-2B on 127.0.0.1:8001
    python policy_server/qwen_policy_server.py --model /path/to/Qwen2-VL-7B-Instruct --port 8002
    python policy_server/qwen_policy_server.py --model blip2_emac:tiny           # the project's own model, no download
    EMAC_POLICY_KEYS=$(openssl rand -hex 16) python policy_server/qwen_policy_server.py --host 0.0.0.0

Everything else is a setting: `--cfg-path FILE`, `--options queue.max_batch=32 memory.cache=1000 …`. On SIGTERM or
Ctrl-C the server answers the accepted requests, then ends. The guide is docs/policy_server.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

# Run as a file, Python's path has only this folder; the packages are in its parent folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.errors import ConfigError
from policy_server.admission.control import AdmissionControl
from policy_server.metrics import Metrics
from policy_server.models.pool import ModelPool
from policy_server.settings import PolicyServerSettings, ServerSettings
from policy_server.web.api_keys import KEYS_VARIABLE, ApiKeys, read_keys
from policy_server.web.app import create_app
from policy_server.web.server import DrainingServer, open_port, uvicorn_config
from xrl_alignment.common.network import is_loopback
from xrl_alignment.common.program import parse_args, run_program
from xrl_alignment.config.loading import load_config

logger = logging.getLogger("policy_server")


def main() -> None:
    """Parse, open the port, load the model, serve."""
    arguments = parse_args(__doc__, add_arguments, cfg_required=False, settings="docs/policy_server.md")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stderr)
    bound_kernel_cache()
    keep_freed_memory()
    settings = read_settings(arguments)
    server = settings.server
    keys = api_keys(server, os.environ)
    listener = open_port(server.host, server.port)
    admission = build(settings)
    app = create_app(admission, keys, loopback=is_loopback(server.host))
    # uvicorn raises the signal that ended it a second time. After an orderly end this must not kill the process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    DrainingServer(uvicorn_config(app, server), admission).run(sockets=[listener])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments beside `--cfg-path` and `--options`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", help="folder, hub id, or blip2_emac:<model type>; the same as model.path=…")
    parser.add_argument("--host", help="address to listen on; the same as server.host=…")
    parser.add_argument("--port", type=int, help="0 takes any free port; the same as server.port=…")


def read_settings(arguments: argparse.Namespace) -> PolicyServerSettings:
    """The file's settings, changed by `--options`, then by `--model`, `--host` and `--port`."""
    shortcuts = {"model.path": arguments.model, "server.host": arguments.host, "server.port": arguments.port}
    options = [f"{key}={value}" for key, value in shortcuts.items() if value is not None]
    return load_config(PolicyServerSettings, arguments.cfg_path, [*arguments.options, *options])


def api_keys(settings: ServerSettings, environment: Mapping[str, str]) -> ApiKeys:
    """The API keys; ConfigError if other machines can reach the server and there are no keys."""
    keys = ApiKeys(read_keys(settings.keys_file, environment))
    if not keys and not is_loopback(settings.host):
        raise ConfigError(
            f"server.host={settings.host} can be reached from other machines: give API keys in server.keys_file or in "
            f"{KEYS_VARIABLE}"
        )
    return keys


def build(settings: PolicyServerSettings) -> AdmissionControl:
    """Admission control with its models; loads the default model."""
    metrics = Metrics()
    pool = ModelPool(settings.model_table(), int(settings.memory.models_gib * 2**30), metrics)
    logger.info("Loading %s ...", settings.model.path)
    model = pool.get(pool.default)
    logger.info("Successfully loaded %s on %s, %.0f MB", settings.model.path, model.device, model.bytes / 1e6)
    return AdmissionControl(settings, pool, metrics)


if __name__ == "__main__":
    run_program(main)
