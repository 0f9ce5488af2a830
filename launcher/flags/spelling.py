"""How a flag may be written: with dashes or underscores, and those of other launchers cut short, as these take them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ... import nearest


class Parser(nearest.Parser):
    """`shortened` are the names, with dashes, of which the beginning is enough where it fits one of them alone.

    One collection for each launcher that takes its own flags so; of two that fit, the first one's counts.
    """

    shortened: Sequence[Collection[str]] = ()

    def _parse_optional(self, arg_string: str) -> Any:
        return super()._parse_optional(self._as_declared(arg_string))

    def _get_option_tuples(self, option_string: str) -> Any:
        """Of a name with one dash no beginning is enough: `-c` is not `-cb`. A value may follow a letter, as in `-p22`."""
        fitting: Any = super()._get_option_tuples(option_string)
        return [fit for fit in fitting if fit[1].startswith("--") or fit[1] == option_string[:2]]

    def _as_declared(self, written: str) -> str:
        if not written.startswith("--") or written == "--":
            return written
        name, equals, value = written.partition("=")
        name = "--" + name[2:].replace("_", "-")
        if name not in self._option_string_actions:
            for names in self.shortened:
                meant = [whole for whole in names if whole.startswith(name)]
                if meant:
                    name = meant[0] if len(meant) == 1 else name
                    break
        return name + equals + value
