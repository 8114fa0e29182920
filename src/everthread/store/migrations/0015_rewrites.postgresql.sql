-- Rewrites of versions whose options had other names serve every set of options: `api engine options …` names them.
UPDATE rewrites SET engine = regexp_replace(engine, '^(\S+ \S+) \S{16}', '\1 *') WHERE engine LIKE '% % %';
