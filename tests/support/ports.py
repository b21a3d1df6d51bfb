"""Free ports for servers that are told theirs, and bind it later or again."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

# Below those that the system gives to clients, or a connection of any process might have the port
# when the server starts.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody uses."""
    chance = random.Random(os.urandom(8))
    ports: list[int] = []
    while len(ports) < count:
        port = chance.choice([port for port in _PORTS if port not in ports])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses."""
    return free_ports(1)[0]
