"""Codecs between providers' JSON and core messages, both directions. Pure.

Each protocol has a package of the same shape, whose functions `codecs.Codec` lists: messages (`…_decoding` and
`…_encoding`), requests with their tools, replies, streams, and modules for what only this protocol has.
"""
