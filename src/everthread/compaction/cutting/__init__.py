"""Make a history smaller: choose the messages to keep, to cut and to shorten."""
