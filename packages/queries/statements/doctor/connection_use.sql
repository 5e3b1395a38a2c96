-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.connection_use */ 
SELECT (SELECT coalesce(sum(numbackends), 0)::integer FROM pg_stat_database) AS used,
  current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true)::integer, 0) AS available,
  (SELECT coalesce(sum(pool_max), 0)::integer FROM holdfast.process) AS pool_max,
  (SELECT count(*)::integer FROM holdfast.process) AS processes
