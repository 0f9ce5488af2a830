"""TLS contexts from files, for both ends; what is wrong with a file is said before anything listens or connects."""

from __future__ import annotations

import ssl
from pathlib import Path

from ..errors import UsageError


def server_context(certificate: Path, key: Path, client_authority: Path | None = None) -> ssl.SSLContext:
    """With `client_authority`, only clients whose certificate it has signed are let in. UsageError names the bad file."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, certificate, key)
    if client_authority is not None:
        _trust(context, client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    authority: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Trusts `authority`, or what the system trusts; shows the certificate if the server wants one. UsageError."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, authority)
    if certificate is not None:
        _load(context, certificate, key or certificate)
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def no_password() -> str:
        raise UsageError(f"the key {str(key)!r} is encrypted: give one without a password")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:  # also an SSLError
        raise UsageError(
            f"the certificate {str(certificate)!r} and the key {str(key)!r} cannot be used: {_reason(error)}."
            " Give PEM files that belong together"
        ) from None


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise UsageError(
            f"the certificates in {str(authority)!r} cannot be used: {_reason(error)}. Give a PEM file"
        ) from None


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
