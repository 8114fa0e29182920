"""Codecs between providers' JSON and core messages, both directions. Pure.

Each protocol has a package of the same shape, whose functions `codecs.Codec` lists: `messages` (if it is large,
`message_decoding` and `message_encoding`), `tools`, `requests`, `replies`, `streams`, and modules for what only this
protocol has.
"""
