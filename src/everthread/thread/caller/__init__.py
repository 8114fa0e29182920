"""A thread whose caller sends its whole history with every call."""
