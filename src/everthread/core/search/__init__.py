"""Words as they are indexed, questions as they are read, and what a search found."""
