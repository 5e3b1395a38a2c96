-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.list_declared */ 
SELECT name, version FROM holdfast.machine ORDER BY name = ANY ($1::text[]) DESC, name, version LIMIT $2::integer
