-- safe: changes how later sessions plan, and nothing else
-- A bitmap scan reads a whole backlog and sorts it where the front of an index is wanted: a claim planned between the VACUUM and the
-- ANALYZE of a table that had grown did so until its session ended. The apps send this setting too; see 0001 for why it stands here as well.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

ALTER ROLE holdfast_scheduler SET enable_bitmapscan = off;
ALTER ROLE holdfast_flusher SET enable_bitmapscan = off;
ALTER ROLE holdfast_reaper SET enable_bitmapscan = off;
ALTER ROLE holdfast_direct_scheduler SET enable_bitmapscan = off;
