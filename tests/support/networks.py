"""A network of hosts on this machine: network namespaces that a bridge in another one connects.

It needs root. The bridge has no link to the network of this machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

_NET = "198.18.0"  # reserved for tests of networks


class Network:
    """A running network.

    Args:
        name: of the namespace of the bridge; the names of the others begin with it.
        hosts: the addresses of the hosts.
    """

    address = f"{_NET}.1"
    """The address of the namespace of the bridge, which cannot be cut off."""

    def __init__(self, name: str, hosts: tuple[str, ...]) -> None:
        self._name = name
        self.hosts = hosts

    def prefix(self, address: str) -> tuple[str, ...]:
        """Return the beginning of a command that runs at an address."""
        name = self._name if address == self.address else f"{self._name}-{_port(address)}"
        return ("ip", "netns", "exec", name)

    def cut(self, host: str) -> None:
        """Drop all packets to and from a host; nothing on it is told."""
        _ip("-n", self._name, "link", "set", _port(host), "down")

    def join(self, host: str) -> None:
        """Undo :meth:`cut`."""
        _ip("-n", self._name, "link", "set", _port(host), "up")


def _port(host: str) -> str:
    return f"port{host.rpartition('.')[2]}"


@contextmanager
def private_network(hosts: int) -> Iterator[Network]:
    """Create a network of that many hosts; skip the test where the machine does not allow it."""
    name = f"dstreams-{os.getpid()}"
    network = Network(name, tuple(f"{_NET}.{number + 2}" for number in range(hosts)))
    with ExitStack() as stack:
        try:
            _add_namespace(name, stack)
            _ip("-n", name, "link", "add", "bridge", "type", "bridge")
            _ip("-n", name, "addr", "add", f"{network.address}/24", "dev", "bridge")
            _ip("-n", name, "link", "set", "bridge", "up")
            for host in network.hosts:
                own, port = f"{name}-{_port(host)}", _port(host)
                _add_namespace(own, stack)
                wire = ("peer", "name", "wire", "netns", own)
                _ip("-n", name, "link", "add", port, "type", "veth", *wire)
                _ip("-n", own, "addr", "add", f"{host}/24", "dev", "wire")
                _ip("-n", own, "link", "set", "wire", "up")
                _ip("-n", name, "link", "set", port, "master", "bridge", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", None) or error).strip()
            pytest.skip(f"network namespaces need root, iproute2 and a kernel with them: {reason}")
        yield network


def _add_namespace(name: str, stack: ExitStack) -> None:
    _ip("netns", "add", name)
    stack.callback(_ip, "netns", "delete", name)
    _ip("-n", name, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
