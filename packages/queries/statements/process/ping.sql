-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* process.ping */ SELECT 1 AS ok
