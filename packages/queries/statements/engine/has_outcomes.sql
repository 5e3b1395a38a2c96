-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.has_outcomes */ SELECT EXISTS (SELECT FROM holdfast.outcome WHERE seq > 0) AS waiting
