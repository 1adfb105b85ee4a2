"""Addresses and ports: whether an address is of this machine only, its URL, and which process listens on a port."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def is_loopback(host: str) -> bool:
    """Whether `host` means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # any other name: it may resolve to any address
        return False


def page_url(host: str, port: int) -> str:
    """Where a browser finds the page of a server that listens on `host`."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def process_on_port(port: int, proc: Path = Path("/proc")) -> str | None:
    """`"python dagger_server.py (process 1234)"` for the process that listens on `port`.

    None where it cannot be found: no process listens, it is another user's, or the system has no /proc.
    """
    inodes = _listening_inodes(port, proc)
    if not inodes:
        return None
    for folder in proc.glob("[0-9]*"):
        if _holds_socket(folder / "fd", inodes):
            return f"{_command_line(folder)} (process {folder.name})"
    return None


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes = set()
    for table in (proc / "net" / "tcp", proc / "net" / "tcp6"):
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode; proc_pid_net(5)
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _holds_socket(descriptors: Path, inodes: set[str]) -> bool:
    links = {f"socket:[{inode}]" for inode in inodes}
    try:
        return any(str(entry.readlink()) in links for entry in descriptors.iterdir())
    except OSError:  # the process ended meanwhile, or belongs to another user
        return False


def _command_line(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "a process"
    return " ".join(word.decode(errors="replace") for word in words if word)[:200] or "a process"
