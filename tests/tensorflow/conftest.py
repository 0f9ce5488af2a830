from ..system.conftest import lab, undisturbed

__all__ = ["lab", "undisturbed"]
