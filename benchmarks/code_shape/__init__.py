"""Parts of the `shape` benchmark."""
