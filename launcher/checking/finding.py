"""What was found out about one thing, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

_SIGNS = {"ok": "ok  ", "look": "LOOK", "fails": "FAIL"}


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do. "look": may be meant so, or may go wrong; "fails": a job that needs it would fail."""

    name: str
    value: str
    verdict: Literal["ok", "look", "fails"] = "ok"
    advice: str = ""


def report(findings: Sequence[Finding]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"  {_SIGNS[finding.verdict]}  {finding.name:<{width}}  {finding.value}")
        if finding.advice:
            lines.append(f"        {'':<{width}}  -> {finding.advice}")
    failing, looking = (_count(findings, verdict) for verdict in ("fails", "look"))
    look = f"{looking} deserve{'s' if looking == 1 else ''} a look"
    if failing:
        lines.append(f"{failing} of these would make a job fail, {look}")
    elif looking:
        lines.append(f"nothing of this would make a job fail; {look}")
    else:
        lines.append("all is well")
    return "\n".join(lines)


def any_fails(findings: Iterable[Finding]) -> bool:
    return _count(findings, "fails") > 0


def _count(findings: Iterable[Finding], verdict: str) -> int:
    return sum(finding.verdict == verdict for finding in findings)
