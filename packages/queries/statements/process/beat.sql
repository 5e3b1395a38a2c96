-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* process.beat */ UPDATE holdfast.process SET heartbeat_at = now() WHERE id = $1::bigint RETURNING id
