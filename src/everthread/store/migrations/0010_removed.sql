-- Recall needs no vectors, and what was fetched again is counted from the messages.
DROP TABLE vectors;
DROP TABLE regrets;
