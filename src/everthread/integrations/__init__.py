"""Everthread inside the frameworks people build agents with: one thin file each, over `thread.py`.

A framework keeps its own history, whole. For each model call it hands the history over, sends what comes back, which
fits the window, and hands over the answer. Nothing here imports a framework that is not used.
"""
