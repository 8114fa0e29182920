"""Everthread inside agent frameworks: one thin file per framework, on top of `threads.py`.

A framework keeps its own history. For each model call it passes the history in, sends the messages that it gets back,
which fit the window, and passes the answer in. No framework is imported that is not used.
"""
