"""Operators: one file for each thing that they act on."""
