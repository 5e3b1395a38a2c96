-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* process.remove_dead */ 
DELETE FROM holdfast.process WHERE heartbeat_at < now() - $1::bigint * interval '1 millisecond' RETURNING id, role, host, pid
