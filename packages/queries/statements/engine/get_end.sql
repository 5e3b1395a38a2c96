-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.get_end */ SELECT id, status, result, error FROM holdfast.instance WHERE id = $1::bigint
