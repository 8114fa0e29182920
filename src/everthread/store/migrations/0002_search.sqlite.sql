CREATE VIRTUAL TABLE search USING fts5 (
    terms, filters,
    content = '', contentless_delete = 1,
    tokenize = "unicode61 remove_diacritics 0 tokenchars '_'"
);
