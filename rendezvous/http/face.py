"""What the HTTP face is told at its start: one frozen dataclass, built from flags."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from ..bearer import TokenFile
from .limits import Limits


@dataclass(frozen=True)
class Face:
    """Without `tokens` everybody may do everything. `open_metrics`: /metrics wants no token."""

    limits: Limits = field(default_factory=Limits)
    tokens: TokenFile | None = None
    open_metrics: bool = False
    tls: ssl.SSLContext | None = None

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"
