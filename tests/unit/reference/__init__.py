"""Tests of the reference components."""
