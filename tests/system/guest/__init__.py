"""What runs inside the emulated machine of test_full_v2.py, on its own Python: the standard library alone."""
