"""Addresses of models on servers: read strictly, fixed before the first request."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from unsoftmax.oracles.text import plain

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
    shown = plain(url, 120)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown!r} is no address ({plain(error, 80)}); it must look like {FORM}.") from error
    if parts.username is not None or parts.password is not None:
        raise ValueError("The address holds a user name or password. Put a token into UNSOFTMAX_TOKEN or a file instead.")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or not url.isprintable():
        raise ValueError(f"{shown!r} is no address of a model; it must look like {FORM}.")
    prefix, found, rest = parts.path.partition("/v2/models/")
    names = [unquote(name) for name in rest.rstrip("/").split("/")]
    legal = found and all(names) and (len(names) == 1 or (len(names) == 3 and names[1] == "versions"))
    if not legal or any(name in (".", "..") for name in [*names, *prefix.split("/")]):
        raise ValueError(f"{shown!r} does not name a model; it must look like {FORM}.")
    if link_local(parts.hostname):
        raise ValueError(f"{parts.hostname} is a link-local address, where clouds keep their secrets; it is never asked.")
    version = names[2] if len(names) == 3 else None
    return Address(parts.scheme, parts.hostname, port, prefix.rstrip("/"), names[0], version)


def link_local(host: str) -> bool:
    """Whether an address is only valid on its own wire."""
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False
