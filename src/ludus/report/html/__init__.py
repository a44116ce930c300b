"""The report: one HTML file with all figures, and picture files beside it."""
