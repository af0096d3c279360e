"""Parts of vis/scaling.py: reading and merging studies, their figure, their table."""
