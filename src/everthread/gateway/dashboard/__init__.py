"""The pages for people: threads, what fills a window, what a compaction took out, what it all cost."""
