"""Every setting, as text tables grouped by what they are about."""
