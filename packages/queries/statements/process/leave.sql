-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* process.leave */ DELETE FROM holdfast.process WHERE id = $1::bigint
