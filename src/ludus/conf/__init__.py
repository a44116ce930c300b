"""Presets as data: `preset/<environment id>/<algorithm>.yaml` holds settings that are known to work there."""
