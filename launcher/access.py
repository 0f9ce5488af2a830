"""What this agent shows to the server, and what it wants to see of it: a token, certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..rendezvous.bearer import TokenFile
from ..rendezvous.tls import client_context


@dataclass(frozen=True)
class Access:
    """`token_file` is both for the server in this agent and for this agent at another; the rest is for https URLs."""

    token_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def tokens(self) -> TokenFile | None:
        """UsageError if the file cannot be used."""
        return TokenFile(self.token_file) if self.token_file is not None else None

    def tls(self, urls: Iterable[str]) -> ssl.SSLContext | None:
        """None where no URL is https. UsageError if a file cannot be used."""
        if not any(url.startswith("https:") for url in urls):
            return None
        return client_context(self.tls_ca, self.tls_cert, self.tls_key)

    def check(self, urls: Iterable[str], flags: Iterable[str]) -> None:
        """UsageError for what cannot work; `flags` are those of TLS that were given on the command line."""
        addresses = list(urls)
        for flag in flags:
            if not any(url.startswith("https:") for url in addresses):
                raise UsageError(
                    f"{flag} is for a server that --rendezvous names as https://HOST:PORT: give one,"
                    f" or leave {flag} out"
                )
        if self.tls_key is not None and self.tls_cert is None:
            raise UsageError("--tls-key is the key of a certificate: give --tls-cert too")
        self.tokens()
        self.tls(addresses)
