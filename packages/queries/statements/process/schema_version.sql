-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* process.schema_version */ 
SELECT coalesce(max(version), 0) AS version,
  coalesce(bool_and(compatibility = 'safe') FILTER (WHERE version > $1::integer), true) AS newer_are_safe
FROM holdfast.schema_migration
