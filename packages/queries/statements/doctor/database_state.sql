-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.database_state */ 
SELECT current_setting('server_version') AS server, current_database()::text AS database, current_user::text AS login,
  EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'holdfast' AND c.relname = 'schema_migration'
  ) AS migrated, pg_has_role('pg_monitor', 'USAGE') AS may_monitor,
  pg_is_in_recovery() AS standby
