"""What a value in a message may be: whatever lies outside is refused before anybody acts on it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""A generation, a step: more than any job counts, and exact in every JSON reader."""
Slot = Annotated[int, Meta(ge=0, le=1 << 16)]
"""A local rank, or a rank."""
MaybeSlot = Annotated[int, Meta(ge=-1, le=1 << 16)]
Code = Annotated[int, Meta(ge=0, le=255)]
"""An exit code, 128 + n for signal n."""
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Patience = Annotated[float, Meta(le=1e9)]  # seconds; that it is not negative is checked with the job
Samples = Annotated[float, Meta(ge=0)]
Size = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]  # workers; what makes sense is checked with the job
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""One line, as it may come to stand in a log."""
MaybeName = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
