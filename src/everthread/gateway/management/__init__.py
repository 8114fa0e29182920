"""The managed side of the gateway: which thread a request continues, and what goes upstream for it.

The HTTP side knows only `gateway.base`: a `Manager` prepares a `ProxyTurn`.
"""
