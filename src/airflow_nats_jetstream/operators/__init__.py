"""Operators, one file per noun."""
