"""Make a history smaller: what is kept, what is cut, what is shortened."""
