"""Which ranks share a host, and by which address the other hosts reach this one."""

import os
import platform
import socket
import struct
import sys
import uuid
from fcntl import ioctl
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/thread-self/ns/net")
SIOCGIFADDR = 0x8915  # "the address of this interface", linux/sockios.h


def host_name() -> str:
    """An opaque name, equal for two processes if they can share a Unix socket.

    On Linux it holds the machine's boot id and the network namespace: two emulated
    hosts on one machine have two namespaces, so they are two hosts, and what they send
    each other takes the emulated link.
    """
    try:
        space = NETWORK.stat()
        boot = BOOT_ID.read_text().strip()
    except OSError:  # not Linux: a socket file is shared by one user's processes
        user = os.getuid() if hasattr(os, "getuid") else 0
        return f"{platform.node()}-{uuid.getnode():x}-{user}"
    return f"{boot}-{space.st_dev}:{space.st_ino}"


def own_address(interface: str | None, towards: str | None) -> str:
    """The address at which ranks on other hosts reach this one.

    Args:
        interface: the network interface's name, such as `eth0`; of several, separated
            by commas, the first.
        towards: where no interface is named: a host, as a name or an address, that the
            other hosts reach too (torchrun's MASTER_ADDR); the interface is the one by
            which this host reaches it.

    Raises:
        ValueError: neither is given, the interface does not exist or has no address,
            or the way to `towards` is the loopback interface.
    """
    if interface is not None:
        return _address_of(interface.split(",")[0].strip())
    if towards is None:
        raise ValueError(
            "ranks are on several hosts, and no interface is named by which to reach "
            "them: give interface= or towards=, or set GLOO_SOCKET_IFNAME"
        )
    address = _address_towards(towards)
    if address.startswith("127.") or address == "::1":
        # Debian maps a host's own name to 127.0.1.1, where no other host gets through.
        raise ValueError(
            f"the way to {towards!r} is the loopback address {address}, which ranks on "
            "other hosts cannot reach: set GLOO_SOCKET_IFNAME to the network "
            "interface's name, or MASTER_ADDR to an address instead of a name"
        )
    return address


def _address_of(interface: str) -> str:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            if sys.platform != "linux":
                raise OSError("interfaces are looked up on Linux only")
            reply = ioctl(sock.fileno(), SIOCGIFADDR, request)
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise ValueError(
                f"network interface {interface!r} has no IPv4 address ({error}); this "
                f"host has {known}"
            ) from None
    return socket.inet_ntoa(reply[20:24])


def _address_towards(host: str) -> str:
    # Connecting a datagram socket sends nothing; it only chooses the route.
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError as error:
        raise ValueError(f"no way to {host!r} was found ({error})") from None
