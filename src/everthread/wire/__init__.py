"""Codecs between providers' JSON and core messages, both directions. Pure.

Each protocol has a package with the same modules: the parts of a message (`…_blocks`, `…_parts`, `…_items`,
`chat_conversion`), messages (`…_decoding`, `…_encoding`), `…_requests` with their tools, `…_replies` and `…_streams`.
`codecs.Codec` lists their functions.
"""
