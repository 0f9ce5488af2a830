"""What a user adds to a generated pod, merged in as `kubectl patch` would: objects by key, named things by their name."""

from __future__ import annotations

from typing import Any

_KEYS = ("mountPath", "containerPort", "name", "key", "ip")  # by which the items of a list are known, first one wins


def merge(base: Any, extra: Any) -> Any:
    """`base` with `extra` laid over it; neither is changed. None in `extra` removes the key."""
    if isinstance(base, dict) and isinstance(extra, dict):
        merged = dict(base)
        for key, value in extra.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge(base[key], value) if key in base else value
        return merged
    if isinstance(base, list) and isinstance(extra, list):
        return _merge_lists(base, extra)
    return extra


def _merge_lists(base: list[Any], extra: list[Any]) -> list[Any]:
    key = next((key for key in _KEYS if _all_have(base, key) and _all_have(extra, key)), None)
    if key is None:
        return extra if all(isinstance(item, str) for item in extra) else base + extra
    merged = {item[key]: item for item in base}
    for item in extra:
        merged[item[key]] = merge(merged[item[key]], item) if item[key] in merged else item
    return list(merged.values())


def _all_have(items: list[Any], key: str) -> bool:
    return all(isinstance(item, dict) and key in item for item in items)
