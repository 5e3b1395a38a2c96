-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.get_statuses */ SELECT id, status FROM holdfast.instance WHERE id = ANY ($1::bigint[])
