"""Which addresses are this machine's own; who holds a port, from a /proc made up here and from the real one."""

import os
import socket
from contextlib import closing

import pytest

from xrl_alignment.common.network import is_loopback, page_url, process_on_port

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1EB4 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1EB5 0100007F:1EB4 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0
"""


def test_reads_the_kernels_tables(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TABLE)
    descriptors = tmp_path / "42" / "fd"
    descriptors.mkdir(parents=True)
    (descriptors / "3").symlink_to("socket:[4711]")
    (tmp_path / "42" / "cmdline").write_bytes(b"python\0dagger_server.py\0")
    assert process_on_port(7860, tmp_path) == "python dagger_server.py (process 42)"
    assert process_on_port(7861, tmp_path) is None  # a connection, not a listener
    (descriptors / "3").unlink()
    assert process_on_port(7860, tmp_path) is None  # another user's process: its descriptors are hidden


def test_without_proc_nobody_is_named(tmp_path):
    assert process_on_port(7860, tmp_path) is None


def test_finds_this_process():
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        assert f"(process {os.getpid()})" in process_on_port(listener.getsockname()[1])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_addresses_of_this_machine_only(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "localhost.example.org", ""])
def test_addresses_that_others_can_reach(host):
    assert not is_loopback(host)


def test_where_a_browser_finds_a_page():
    assert page_url("127.0.0.1", 7860) == "http://127.0.0.1:7860/"
    assert page_url("::1", 80) == "http://[::1]:80/"
    assert page_url("0.0.0.0", 80) == page_url("::", 80) == f"http://{socket.gethostname()}:80/"
