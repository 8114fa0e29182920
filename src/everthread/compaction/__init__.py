"""What to keep: context engines and how one is chosen."""
