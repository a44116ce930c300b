"""Figures: what is drawn of a run, as panels that know no plotting library."""
