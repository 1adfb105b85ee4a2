"""Which connection makes room for another."""

from __future__ import annotations

import socket

import pytest

from xrl_alignment.wire.connections import OpenConnections


@pytest.fixture
def pairs():
    opened = [socket.socketpair() for _ in range(5)]
    yield opened
    for near, far in opened:
        near.close()
        far.close()


def test_new_ones_go_first_then_idle_ones_and_busy_ones_never(pairs):
    (near, far) = zip(*pairs, strict=True)
    connections = OpenConnections(3)
    for connection in near[:3]:
        assert connections.enter(connection)
    connections.busy(near[0])
    connections.busy(near[1])
    connections.idle(near[0])
    assert connections.enter(near[3])  # for near[2], which is new
    assert far[2].recv(1) == b""
    connections.busy(near[3])
    assert connections.enter(near[4])  # for near[0], which is idle
    assert far[0].recv(1) == b""
    connections.busy(near[4])
    assert not connections.enter(near[2])
    with pytest.raises(ConnectionAbortedError):
        connections.busy(near[0])
    connections.leave(near[1])
    assert connections.enter(near[2])


def test_an_idle_connection_may_become_busy_again(pairs):
    connections = OpenConnections(1)
    near = pairs[0][0]
    assert connections.enter(near)
    for _ in range(2):
        connections.busy(near)
        connections.idle(near)
    connections.leave(near)
    connections.idle(near)  # it has left: nothing happens
    assert connections.enter(pairs[1][0])
