"""Read stored threads: search them, show originals, describe them."""
