"""Codecs between providers' JSON and core messages, both directions. Pure.

Each protocol has a package with the same modules: the parts of a message (`…_blocks`, `…_parts`, `…_items`,
`chat_conversion`), messages (`…_decoding`, `…_encoding`), `…_requests` with their tools, `…_replies`, `…_streams`,
`…_errors`, and `…_fields`: the fields that a gateway reads and sets in a request without decoding it.
`codecs.Codec` lists their functions.
"""
