"""The policy server: loads a vision-language model once and answers many games with actions.

    python policy_server/qwen_policy_server.py                                   # Qwen2-VL-2B on 127.0.0.1:8001
    python policy_server/qwen_policy_server.py --model /path/to/Qwen2-VL-7B-Instruct --port 8002
    python policy_server/qwen_policy_server.py --model blip2_emac:tiny           # the project's own model, no download
    EMAC_POLICY_KEYS=$(openssl rand -hex 16) python policy_server/qwen_policy_server.py --host 0.0.0.0

Everything else is a setting: `--cfg-path FILE`, `--options queue.max_batch=32 memory.cache=1000 …`. Ends on SIGTERM or
Ctrl-C, after what is waiting has been answered. docs/policy_server.md is the guide.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from errno import EADDRINUSE
from pathlib import Path
from types import FrameType
from typing import Any

# Run as a file, only its own folder is on the path; the packages are beside that folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvicorn

from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.errors import ConfigError
from policy_server.admission import Admission
from policy_server.http_server import SERVICE, create_app
from policy_server.keys import KEYS_VARIABLE, KeyRing, read_keys
from policy_server.metrics import Metrics
from policy_server.model_pool import ModelPool
from policy_server.settings import PolicyServerSettings, ServerSettings
from xrl_alignment.common.network import is_loopback, process_on_port
from xrl_alignment.common.program import parse_args, run_program
from xrl_alignment.config.loading import load_config

logger = logging.getLogger("policy_server")

WRITE_S = 5  # after the last answer is known, for sending it


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which answers what `admission` has in hand before it closes anything.

    Until then it says so at `/health` and refuses new requests with 503.
    """

    def __init__(self, config: uvicorn.Config, admission: Admission) -> None:
        super().__init__(config)
        self.admission = admission

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or Ctrl-C; a second Ctrl-C ends at once."""
        logger.info("%s: answering what is waiting, then ending", signal.Signals(sig).name)
        if self.admission.loop is not None:
            self.admission.loop.call_soon_threadsafe(self.admission.drain)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and only then say so."""
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            logger.info("%s ready! http://%s:%d", SERVICE, f"[{host}]" if ":" in host else host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the last answer, then close all connections."""
        await self.admission.drained()
        await super().shutdown(sockets)


def main() -> None:
    """Parse, open the port, load the model, serve."""
    arguments = parse_args(__doc__, add_arguments, cfg_required=False, settings="docs/policy_server.md")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stderr)
    bound_kernel_cache()
    keep_freed_memory()
    settings = read_settings(arguments)
    server = settings.server
    keys = key_ring(server, os.environ)
    listener = open_port(server.host, server.port)
    admission = build(settings)
    app = create_app(admission, keys, loopback=is_loopback(server.host))
    # uvicorn raises the signal that ended it once more: after an orderly end that is no reason to be killed by it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    DrainingServer(uvicorn_config(app, server), admission).run(sockets=[listener])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments beside `--cfg-path` and `--options`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", help="folder, hub id, or blip2_emac:<model type>; as --options model.path=…")
    parser.add_argument("--host", help="as --options server.host=…")
    parser.add_argument("--port", type=int, help="as --options server.port=…; 0 takes any free one")


def read_settings(arguments: argparse.Namespace) -> PolicyServerSettings:
    """File, options, and the three shortcuts over them."""
    shortcuts = {"model.path": arguments.model, "server.host": arguments.host, "server.port": arguments.port}
    options = [f"{key}={value}" for key, value in shortcuts.items() if value is not None]
    return load_config(PolicyServerSettings, arguments.cfg_path, [*arguments.options, *options])


def key_ring(settings: ServerSettings, environment: Mapping[str, str]) -> KeyRing:
    """The API keys; ConfigError where others can reach the server and there are none."""
    keys = KeyRing(read_keys(settings.keys_file, environment))
    if not keys and not is_loopback(settings.host):
        raise ConfigError(
            f"server.host={settings.host} can be reached from other machines: give API keys in server.keys_file or in "
            f"{KEYS_VARIABLE}"
        )
    return keys


def build(settings: PolicyServerSettings) -> Admission:
    """The models and what stands in front of them; the default model is loaded at once."""
    metrics = Metrics()
    pool = ModelPool(settings.model_table(), int(settings.memory.models_gib * 2**30), metrics)
    logger.info("Loading %s ...", settings.model.path)
    try:
        model = pool.get(pool.default)
    except MemoryError as error:
        raise ConfigError(f"model.path={settings.model.path}: {error}") from error
    logger.info("Successfully loaded %s on %s, %.0f MB", settings.model.path, model.device, model.bytes / 1e6)
    return Admission(settings, pool, metrics)


def uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    """uvicorn without a log of its own, with our limit for messages of WebSockets too."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=WRITE_S,
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
    )


def open_port(host: str, port: int) -> socket.socket:
    """The listening socket, before anything is loaded; OSError that says who holds the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, so that asyncio sends small packets at once (TCP_NODELAY); else an answer's body waits 40 ms for the
    # acknowledgement of its headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno != EADDRINUSE:
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        holder = process_on_port(port) or "another process"
        raise OSError(f"port {port} is held by {holder}; stop it or choose another --port") from error
    return listener


if __name__ == "__main__":
    run_program(main)
