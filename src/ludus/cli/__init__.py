"""The command line: `main` finds the module of a verb."""
