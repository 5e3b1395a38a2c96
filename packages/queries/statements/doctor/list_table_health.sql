-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.list_table_health */ 
SELECT c.relname::text AS table, c.reltuples::float8 AS planned_rows, s.n_live_tup::float8 AS live, s.n_dead_tup::float8 AS dead,
  s.n_mod_since_analyze::float8 AS modified_since_analyze,
  (extract(epoch FROM now() - greatest(s.last_vacuum, s.last_autovacuum)) * 1000)::float8 AS since_vacuum_ms,
  (extract(epoch FROM now() - greatest(s.last_analyze, s.last_autoanalyze)) * 1000)::float8 AS since_analyze_ms,
  pg_total_relation_size(c.oid)::float8 AS total_bytes,
  EXISTS (
    SELECT FROM pg_options_to_table(c.reloptions) o
    WHERE o.option_name = 'autovacuum_enabled' AND lower(o.option_value) IN ('false', 'off', 'no', '0')
  ) AS autovacuum_off
FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'r'
ORDER BY pg_total_relation_size(c.oid) DESC, c.relname
