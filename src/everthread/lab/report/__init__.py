"""Replays as one page that needs nothing else: no server, no network, no script to be read."""

from everthread.lab.report.page import page

__all__ = ["page"]
