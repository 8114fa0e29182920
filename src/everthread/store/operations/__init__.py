"""What a store does, as functions over an open transaction: written once, for every database."""
