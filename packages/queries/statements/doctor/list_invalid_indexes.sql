-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.list_invalid_indexes */ 
SELECT i.indexrelid::regclass::text AS index, i.indrelid::regclass::text AS table
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relnamespace = 'holdfast'::regnamespace AND NOT (i.indisvalid AND i.indisready) ORDER BY 1
