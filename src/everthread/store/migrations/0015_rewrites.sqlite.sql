-- Rewrites of versions whose options had other names serve every set of options: `api engine options …` names them.
UPDATE rewrites SET engine =
    substr(engine, 1, instr(engine, ' ') + instr(substr(engine, instr(engine, ' ') + 1), ' ')) || '*'
    || substr(engine, instr(engine, ' ') + instr(substr(engine, instr(engine, ' ') + 1), ' ') + 17)
    WHERE engine LIKE '% % %';
