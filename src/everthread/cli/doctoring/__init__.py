"""What `everthread doctor` looks at."""
