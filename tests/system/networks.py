"""Hosts of one's own: network namespaces on a bridge, whose links can be cut without a word to anybody."""

from __future__ import annotations

import os
import subprocess
import uuid


class Network:
    """A bridge in a namespace of its own, at `address`, and hosts on it."""

    def __init__(self) -> None:
        self._name = f"el{uuid.uuid4().hex[:6]}"
        self._hosts: list[Host] = []
        self.address = "10.99.0.1"
        self.inside = _inside(self._name)
        _ip("netns", "add", self._name)
        try:
            _ip("-n", self._name, "link", "set", "lo", "up")
            _ip("-n", self._name, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._name, "addr", "add", f"{self.address}/24", "dev", "br0")
            _ip("-n", self._name, "link", "set", "br0", "up")
        except BaseException:
            self.close()
            raise

    def add_host(self) -> Host:
        number = len(self._hosts) + 2
        host = Host(f"{self._name}h{number}", f"10.99.0.{number}", self._name)
        self._hosts.append(host)
        host.connect()
        return host

    def close(self) -> None:
        for name in (*(host.name for host in self._hosts), self._name):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Host:
    """One host: `inside` runs a command on it; `cut` is as if its cable were pulled."""

    def __init__(self, name: str, address: str, bridge: str) -> None:
        self.name, self.address, self._bridge = name, address, bridge
        self.inside = _inside(name)
        self._link = f"to-{address.rpartition('.')[2]}"

    def connect(self) -> None:
        _ip("netns", "add", self.name)
        _ip("-n", self._bridge, "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("-n", self._bridge, "link", "set", self._link, "master", "br0", "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")

    def cut(self) -> None:
        _ip("-n", self._bridge, "link", "set", self._link, "down")

    def mend(self) -> None:
        _ip("-n", self._bridge, "link", "set", self._link, "up")


def reason_without_networks() -> str:
    """Why this machine cannot do that; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        Network().close()
    except FileNotFoundError:
        return "the command `ip` (iproute2) is not installed"
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.decode(errors='replace').strip()}"
    return ""


def _inside(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)
