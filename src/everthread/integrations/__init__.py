"""Everthread inside agent frameworks: one thin module per framework, on top of `threads.py`.

A framework keeps its own history. For each model call it passes its history, sends the returned messages, which fit the
window, and passes the answer. Only the frameworks in use are imported.
"""
