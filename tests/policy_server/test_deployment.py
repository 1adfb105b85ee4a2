"""Image and unit name only what is there. Neither is built or started here: that needs Docker and systemd."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from lavis.common.paths import REPO_ROOT
from policy_server.qwen_policy_server import read_command_line
from tests.file_server import FileServer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = REPO_ROOT / "policy_server"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")


def arguments_of(command: list[str]) -> list[str]:
    """What follows the program, which must be there."""
    assert (REPO_ROOT / command[1]).is_file()
    return command[2:]


def test_the_image_copies_files_that_are_there_and_let_through():
    copied = [path for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for path in line.split()[:-1]]
    assert copied and all((REPO_ROOT / path).exists() for path in copied)
    lines = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    # Sorted lists, not sets: nothing stands there twice.
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(set(copied)) == sorted(copied)


def test_the_image_installs_extras_that_are_there():
    project = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"pip install .*'\.\[(.+)\]'", DOCKERFILE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    readme, licence = project["readme"], project["license-files"]
    assert all(f" {name} " in DOCKERFILE for name in ("pyproject.toml", "setup.py", readme, *licence))


@pytest.mark.parametrize("image", ["policy_server", "examples/openenv"])
def test_the_health_check_asks_the_server_itself_not_a_proxy(image):
    """Docker gives containers the proxies of its own settings (~/.docker/config.json) as HTTP_PROXY."""
    text = (REPO_ROOT / image / "Dockerfile").read_text(encoding="utf-8")
    (check,) = re.findall(r"^HEALTHCHECK .*CMD python (.+)$", text, re.MULTILINE)
    with FileServer() as server:
        option, code = shlex.split(re.sub(r"http://127\.0\.0\.1:\d+", server.url, check))
        environment = {"PATH": os.environ["PATH"], "http_proxy": "http://127.0.0.1:9"}  # where nothing listens
        subprocess.run([sys.executable, option, code], env=environment, check=True)


def test_the_commands_of_image_and_unit_are_understood():
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE)
    unit = (FOLDER / "policy-server.service").read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    for command in (json.loads(entry), shlex.split(start.replace("%d", "/run/credentials"))):
        settings = read_command_line(arguments_of(command))
        assert (settings.server.host, settings.server.port) == ("0.0.0.0", 8001)
        stop = re.search(r"TimeoutStopSec=(\d+)", unit)
        assert int(stop[1]) > settings.server.drain_s
    assert f"EXPOSE {settings.server.port}" in DOCKERFILE
