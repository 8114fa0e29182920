"""Names in Use: the files, identifiers, commands and addresses that the work uses."""
