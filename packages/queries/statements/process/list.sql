-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* process.list */ 
SELECT id, role, host, pid, version, started_at, (extract(epoch FROM now() - heartbeat_at) * 1000)::float8 AS silent_ms
FROM holdfast.process ORDER BY role, id
