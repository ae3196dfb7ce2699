"""A small stock of goods."""
