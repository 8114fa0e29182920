"""Pages for people: threads, the content of a window, compactions before and after, costs."""
