"""The managed side of the gateway: find the thread of a request and make the request to send upstream.

The HTTP side knows only `gateway.contracts`: a `Manager` prepares a `ProxyTurn`.
"""
