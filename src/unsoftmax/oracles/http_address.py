"""Addresses of models on servers: read strictly, fixed before the first request."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from unsoftmax.oracles.text import plain

METADATA = ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")  # of clouds that keep it elsewhere
METADATA_NAMES = ("metadata.google.internal", "metadata", "instance-data")
CA_VARIABLE = "UNSOFTMAX_CA_FILE"
FORM = "http(s)://HOST[:PORT]/v2/models/NAME"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model is: server root, path prefix before ``/v2``, model and version."""

    scheme: str
    host: str
    port: int | None
    prefix: str
    model: str
    version: str | None

    @property
    def root(self) -> str:
        """Scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port is None else f':{self.port}'}"

    @property
    def server_path(self) -> str:
        """Path of the server's own metadata."""
        return f"{self.prefix}/v2"

    @property
    def model_path(self) -> str:
        """Path of the model's metadata."""
        versioned = "" if self.version is None else f"/versions/{quote(self.version, safe='')}"
        return f"{self.server_path}/models/{quote(self.model, safe='')}{versioned}"

    @property
    def infer_path(self) -> str:
        """Path that questions are posted to."""
        return f"{self.model_path}/infer"

    @property
    def url(self) -> str:
        """The whole address, without anything secret."""
        return self.root + self.model_path

    @property
    def loopback(self) -> bool:
        """Whether it is this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def private(self) -> bool:
        """Whether a token may travel there: encrypted, or within this machine."""
        return self.scheme == "https" or self.loopback

    def trust(self, ca_file: str | Path | None) -> ssl.SSLContext | bool:
        """The certificates to verify against: public ones, or those in ``ca_file`` or the file named by ``UNSOFTMAX_CA_FILE``."""
        named = ca_file or os.environ.get(CA_VARIABLE)
        if self.scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used, and trusts nobody; the public list takes long to read
        if not named:
            return True
        try:
            return ssl.create_default_context(cafile=str(named))
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"The certificate file {named} cannot be read ({plain(error, 80)}).") from error


def read_address(url: str) -> Address:
    """Take an address apart.

    >>> read_address("http://127.0.0.1:8080/v2/models/head").infer_path
    '/v2/models/head/infer'
    """
    shown = presentable(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown!r} is no address; it must look like {FORM}.") from error
    if parts.username is not None or parts.password is not None:
        raise ValueError("The address holds a user name or password. Put a token into UNSOFTMAX_TOKEN or a file instead.")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or not url.isprintable():
        raise ValueError(f"{shown!r} is no address of a model; it must look like {FORM}.")
    prefix, found, rest = parts.path.partition("/v2/models/")
    names = [unquote(name) for name in rest.rstrip("/").split("/")]
    legal = found and all(names) and (len(names) == 1 or (len(names) == 3 and names[1] == "versions"))
    if not legal or any(name in (".", "..") for name in [*names, *prefix.split("/")]):
        raise ValueError(f"{shown!r} does not name a model; it must look like {FORM}.")
    refuse_forbidden(parts.hostname)
    version = names[2] if len(names) == 3 else None
    return Address(parts.scheme, parts.hostname, port, prefix.rstrip("/"), names[0], version)


def presentable(url: str) -> str:
    """An address for a message: without user names, passwords, queries and fragments, where tokens may be.

    >>> presentable("grpc://me:secret@host:1/name?token=secret")
    'grpc://host:1/name'
    """
    scheme, mark, rest = url.partition("://")
    place, slash, path = re.split(r"[?#]", rest if mark else scheme, maxsplit=1)[0].partition("/")
    return plain((scheme + mark if mark else "") + place.rpartition("@")[2] + slash + path.rpartition("@")[2], 120)


def refuse_forbidden(host: str) -> None:
    """Refuse an address where clouds keep their secrets, however it is written."""
    if forbidden(host):
        raise ValueError(f"{plain(host, 80)} is a link-local address, where clouds keep their secrets; it is never asked.")


def forbidden(host: str) -> bool:
    """Whether ``host`` is link-local or an address of a cloud's metadata: as numbers of any base, inside IPv6, with a zone.

    >>> [forbidden(host) for host in ("169.254.169.254", "0xa9fea9fe", "2852039166", "::ffff:169.254.1.1", "fe80::1%eth0")]
    [True, True, True, True, True]
    >>> forbidden("①⑥⑨.254.169.254")
    True
    >>> [forbidden(host) for host in ("127.0.0.1", "example.org", "::1", "10.0.0.1")]
    [False, False, False, False]
    """
    bare = unicodedata.normalize("NFKC", host).strip("[]").partition("%")[0].rstrip(".").lower()  # as names are resolved
    if bare in METADATA_NAMES:
        return True
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        try:  # 169.254.43518, 0251.0376.0251.0376, 0xa9fea9fe and their like, as the C library reads them
            address = ipaddress.IPv4Address(socket.inet_aton(bare))
        except (OSError, ValueError, UnicodeEncodeError):
            return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and (int(address) >> 32) in (0, 0x64FF9B << 64):  # ::a.b.c.d and 64:ff9b::a.b.c.d
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None and (inner.is_link_local or str(inner) in METADATA):
            return True
    return address.is_link_local or str(address) in METADATA
