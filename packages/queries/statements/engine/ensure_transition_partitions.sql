-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.ensure_transition_partitions */ SELECT holdfast.ensure_transition_partitions($1::integer) AS made
