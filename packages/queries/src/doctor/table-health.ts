import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface TableHealthRow {
  readonly table: string
  /** Rows as the last ANALYZE or VACUUM counted them; -1 when there was none. Plans are made of this. */
  readonly planned_rows: number
  readonly live: number
  readonly dead: number
  readonly modified_since_analyze: number
  readonly since_vacuum_ms: number | null
  readonly since_analyze_ms: number | null
  readonly total_bytes: number
  readonly autovacuum_off: boolean
}

/** Every table of ours, as the statistics see it; partitions by themselves, since each is vacuumed by itself. */
export const listTableHealth = statement<Record<never, never>, TableHealthRow>(
  'doctor.list_table_health',
  () => sql<TableHealthRow>`
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
ORDER BY pg_total_relation_size(c.oid) DESC, c.relname`,
  {},
)

/** Indexes that are kept up and used by no plan: what a REINDEX or CREATE INDEX CONCURRENTLY that was broken off leaves behind. */
export const listInvalidIndexes = statement<Record<never, never>, { index: string; table: string }>(
  'doctor.list_invalid_indexes',
  () => sql`
SELECT i.indexrelid::regclass::text AS index, i.indrelid::regclass::text AS table
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relnamespace = 'holdfast'::regnamespace AND NOT (i.indisvalid AND i.indisready) ORDER BY 1`,
  {},
)

export interface VacuumHolderRow {
  readonly kind: 'transaction' | 'prepared' | 'slot' | 'standby'
  /** Process id, global id or slot name: what a person needs to end it. */
  readonly id: string
  readonly who: string
  /** How long it has been open; null where nobody keeps that. */
  readonly open_ms: number | null
  /** Transactions that have begun since its horizon; what has died since then cannot be removed. */
  readonly age_xids: number | null
  /** WAL that it keeps on disk. */
  readonly wal_bytes: number | null
  /** A slot that somebody reads; always true for the others. */
  readonly active: boolean
}

/**
 * Whatever keeps VACUUM from removing dead rows of this database: open transactions, prepared ones, replication slots, standbys with feedback.
 * Sessions of others are shown to superusers and members of pg_monitor only.
 */
export const listVacuumHolders = statement<{ openMs: number }, VacuumHolderRow>(
  'doctor.list_vacuum_holders',
  ({ openMs }) => sql<VacuumHolderRow>`
SELECT 'transaction' AS kind, a.pid::text AS id, concat_ws(' ', a.usename, a.application_name, a.state) AS who,
  (extract(epoch FROM now() - a.xact_start) * 1000)::float8 AS open_ms,
  greatest(age(a.backend_xmin), age(a.backend_xid))::float8 AS age_xids, NULL::float8 AS wal_bytes, true AS active
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
  AND a.xact_start < now() - ${openMs}::bigint * interval '1 millisecond'
UNION ALL
SELECT 'prepared', p.gid, p.owner, (extract(epoch FROM now() - p.prepared) * 1000)::float8, age(p.transaction)::float8, NULL, true
FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < now() - ${openMs}::bigint * interval '1 millisecond'
UNION ALL
SELECT 'slot', r.slot_name, concat_ws(' ', r.slot_type, r.plugin), NULL, age(coalesce(r.xmin, r.catalog_xmin))::float8,
  pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, r.restart_lsn)::float8, r.active
FROM pg_replication_slots r WHERE NOT r.temporary AND (r.database IS NULL OR r.database = current_database())
UNION ALL
SELECT 'standby', w.pid::text, concat_ws(' ', w.usename, w.application_name), NULL, age(w.backend_xmin)::float8, NULL, true
FROM pg_stat_replication w WHERE w.backend_xmin IS NOT NULL
ORDER BY 5 DESC NULLS LAST, 4 DESC NULLS LAST`,
  { openMs: 300_000 },
)
