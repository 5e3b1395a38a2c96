-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.list_migrations */ SELECT version, name, sha256, compatibility FROM holdfast.schema_migration ORDER BY version
