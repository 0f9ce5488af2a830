"""Whether pods can be watched from here, and which: checked before anything starts, without importing what watches them."""

from __future__ import annotations

import importlib.util

from ..errors import UsageError

_NEEDS = ("kubernetes", "yaml")


def checked_selector(text: str) -> str:
    """A label selector, as it was given. UsageError where nothing could be watched with it."""
    key, equals, value = text.partition("=")
    if not (key.strip(" !") and equals and value.strip(" =")):
        raise UsageError(f"{text!r} is no label of this job's pods: give one as in app=digits")
    for name in _NEEDS:
        if not _is_installed(name):
            raise UsageError(f"the package {name} is missing: pip install 'elastic-launch[kubernetes]'")
    return text


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # whoever put None in its place wants it not to be found
        return False
