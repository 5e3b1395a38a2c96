-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.peek_outcome */ 
SELECT seq FROM holdfast.outcome WHERE seq > $1::bigint ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED
