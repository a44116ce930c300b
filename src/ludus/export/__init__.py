"""Policies as files for other runtimes."""

from ludus.export.exporting import Exported, export_policy

__all__ = ["Exported", "export_policy"]
