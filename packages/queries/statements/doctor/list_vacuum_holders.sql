-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.list_vacuum_holders */ 
SELECT 'transaction' AS kind, a.pid::text AS id, concat_ws(' ', a.usename, a.application_name, a.state) AS who,
  (extract(epoch FROM now() - a.xact_start) * 1000)::float8 AS open_ms,
  greatest(age(a.backend_xmin), age(a.backend_xid))::float8 AS age_xids, NULL::float8 AS wal_bytes, true AS active
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
  AND a.xact_start < now() - $1::bigint * interval '1 millisecond'
UNION ALL
SELECT 'prepared', p.gid, p.owner, (extract(epoch FROM now() - p.prepared) * 1000)::float8, age(p.transaction)::float8, NULL, true
FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < now() - $2::bigint * interval '1 millisecond'
UNION ALL
SELECT 'slot', r.slot_name, concat_ws(' ', r.slot_type, r.plugin), NULL, age(coalesce(r.xmin, r.catalog_xmin))::float8,
  pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, r.restart_lsn)::float8, r.active
FROM pg_replication_slots r WHERE NOT r.temporary AND (r.database IS NULL OR r.database = current_database())
UNION ALL
SELECT 'standby', w.pid::text, concat_ws(' ', w.usename, w.application_name), NULL, age(w.backend_xmin)::float8, NULL, true
FROM pg_stat_replication w WHERE w.backend_xmin IS NOT NULL
ORDER BY 5 DESC NULLS LAST, 4 DESC NULLS LAST
