"""The policy server: loads a vision-language model once and answers many games with actions.

    python policy_server/qwen_policy_server.py                                   # Qwen2-VL-2B on 127.0.0.1:8001
    python policy_server/qwen_policy_server.py --model /path/to/Qwen2-VL-7B-Instruct --port 8002
    python policy_server/qwen_policy_server.py --model blip2_emac:tiny           # the project's own model, no download
    EMAC_POLICY_KEYS=$(openssl rand -hex 16) python policy_server/qwen_policy_server.py --host 0.0.0.0
    cd policy_server && EMAC_POLICY_MODEL=blip2_emac:tiny uvicorn qwen_policy_server:app --port 8001

Everything else is a setting: `--cfg-path FILE`, `--options queue.max_batch=32 memory.cache=1000 …`, or in the
environment, for uvicorn and gunicorn: EMAC_POLICY_CFG, EMAC_POLICY_OPTIONS. On SIGTERM or Ctrl-C the server answers the
accepted requests, then ends. The guide is docs/policy_server.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Run as a file, Python's path has only this folder; the packages are in its parent folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lavis.common.errors import ConfigError, EmacError
from lavis.common.program import parse_args, read_first, run_program
from policy_server.settings import PolicyServerSettings, ServerSettings
from xrl_alignment.settings.loading import load_config

CFG_VARIABLE, OPTIONS_VARIABLE, MODEL_VARIABLE = "EMAC_POLICY_CFG", "EMAC_POLICY_OPTIONS", "EMAC_POLICY_MODEL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments beside `--cfg-path` and `--options`."""
    parser.add_argument("--model", help="folder, hub id, or blip2_emac:<model type>; the same as model.path=…")
    parser.add_argument("--host", help="address to listen on; the same as server.host=…")
    parser.add_argument("--port", type=int, help="0 takes any free port; the same as server.port=…")


def read_command_line(argv: list[str] | None = None) -> PolicyServerSettings:
    """The settings of the environment, changed by the command line: by `--options`, then by the other arguments."""
    arguments = parse_args(__doc__, add_arguments, argv, cfg_required=False, settings="docs/policy_server.md")
    shortcuts = {"model.path": arguments.model, "server.host": arguments.host, "server.port": arguments.port}
    options = [_option(key, value) for key, value in shortcuts.items() if value is not None]
    return settings_from(os.environ, arguments.cfg_path, [*arguments.options, *options])


def settings_from(
    environment: Mapping[str, str], cfg_path: str | None = None, options: Sequence[str] = ()
) -> PolicyServerSettings:
    """The settings of the file EMAC_POLICY_CFG, changed by EMAC_POLICY_OPTIONS, EMAC_POLICY_MODEL, then by `options`.

    `cfg_path` replaces the file. Raises ConfigError for a setting that cannot be used.
    """
    try:
        # As a shell splits words: a value with blanks stands in quotes.
        given = shlex.split(environment.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise ConfigError(f"{OPTIONS_VARIABLE}: {error}; write key=value, separated by blanks") from error
    if environment.get(MODEL_VARIABLE):
        given.append(_option("model.path", environment[MODEL_VARIABLE]))
    file = cfg_path or environment.get(CFG_VARIABLE) or None
    return load_config(PolicyServerSettings, file, [*given, *options])


def _option(key: str, value: object) -> str:
    # A text in quotes: yaml reads `::`, `hf_vlm:` and `a #b` otherwise. JSON is yaml.
    return f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes in the settings are answered at once.
    read_first(read_command_line)

from fastapi import FastAPI

from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from policy_server.admission.control import AdmissionControl
from policy_server.metrics import Metrics
from policy_server.models.pool import ModelPool
from policy_server.web.api_keys import KEYS_VARIABLE, ApiKeys, read_keys
from policy_server.web.app import create_app
from policy_server.web.gate import Receive, Scope, Send
from policy_server.web.server import SPARE_FILES, DrainingServer, allow_open_files, open_port, uvicorn_config
from xrl_alignment.common.network import is_loopback

logger = logging.getLogger("policy_server")


def main() -> None:
    """Parse, open the port, load the model, serve."""
    settings = read_command_line()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stderr)
    server = settings.server
    keys = api_keys(server, os.environ)
    # Whatever can fail at once comes before the model, which takes seconds or minutes to load.
    allow_open_files(server.connections + SPARE_FILES)
    listener = open_port(server.host, server.port)
    admission = build(settings)
    DrainingServer(uvicorn_config(create_app(admission, keys), server), admission).run(sockets=[listener])


def api_keys(settings: ServerSettings, environment: Mapping[str, str]) -> ApiKeys:
    """The API keys; ConfigError if other machines can reach the server and there are no keys."""
    keys = ApiKeys(read_keys(settings.keys_file, environment))
    if not keys and not is_loopback(settings.host):
        raise ConfigError(
            f"server.host={settings.host} can be reached from other machines, so the server needs an API key: set "
            f"{KEYS_VARIABLE} to a random text (`openssl rand -hex 16`; in Docker: docker run -e {KEYS_VARIABLE}=<key> "
            "…), or name a file of keys in server.keys_file; clients send the key (EMAC_POLICY_KEY)"
        )
    return keys


def build(settings: PolicyServerSettings) -> AdmissionControl:
    """Admission control with its models; loads the default model."""
    # Memory settings of the whole process, before its first tensor: oneDNN reads its own only then.
    bound_kernel_cache()
    keep_freed_memory()
    metrics = Metrics()
    pool = ModelPool(settings.model_table(), int(settings.memory.models_gib * 2**30), metrics)
    logger.info("Loading %s ...", settings.model.path)
    model = pool.get(pool.default)
    logger.info("Successfully loaded %s on %s, %.0f MB", settings.model.path, model.device, model.bytes / 1e6)
    return AdmissionControl(settings, pool, metrics)


class PolicyApp:
    """The server as an ASGI application, for `uvicorn qwen_policy_server:app` and gunicorn.

    The settings come from the environment. It loads its model when it starts. Without API keys it answers programs of
    this machine only, whatever address uvicorn listens on.
    """

    def __init__(self) -> None:
        self._app: FastAPI | None = None

    def load(self, options: Sequence[str] = ()) -> None:
        """Load the model; `options` change the environment's settings. Raises an EmacError that says how to fix it."""
        settings = settings_from(os.environ, options=options)
        keys = ApiKeys(read_keys(settings.server.keys_file, os.environ))
        if not keys:
            logger.warning("no API keys: programs of other machines are refused; %s sets keys", KEYS_VARIABLE)
        self._app = create_app(build(settings), keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if self._app is None:
            try:
                self.load()
            except EmacError as error:
                if scope["type"] != "lifespan":
                    raise
                # At the start: uvicorn prints this message and ends. A request could not be answered so.
                await receive()
                await send({"type": "lifespan.startup.failed", "message": f"error: {error}"})
                return
        assert self._app is not None
        await self._app(scope, receive, send)


app = PolicyApp()


def load_model(**settings: object) -> None:
    """Load the model that `app` serves, before the server starts: `load_model(device="cpu")`.

    `settings` are those of the section `model`. Without this call, `app` loads the environment's model when it starts.
    """
    app.load([_option(f"model.{key}", value) for key, value in settings.items()])


if __name__ == "__main__":
    run_program(main)
