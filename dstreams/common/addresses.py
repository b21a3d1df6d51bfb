"""Addresses of hosts."""

from __future__ import annotations

import ipaddress


def is_address(host: str) -> bool:
    """Return whether *host* is an address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether an address or name is a loopback one."""
    return host.lower() == "localhost" or (
        is_address(host) and ipaddress.ip_address(host).is_loopback
    )
