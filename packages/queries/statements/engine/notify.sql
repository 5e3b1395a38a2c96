-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.notify */ 
SELECT pg_notify($1::text, p) FROM unnest($2::text[]) AS p, set_config('synchronous_commit', 'off', true)
