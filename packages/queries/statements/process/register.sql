-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* process.register */ 
INSERT INTO holdfast.process (role, host, pid, version, pool_max)
VALUES ($1::text, $2::text, $3::integer, $4::text, $5::integer)
RETURNING id
