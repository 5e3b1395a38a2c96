-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.list_settings */ 
WITH watched AS (
  SELECT unnest(ARRAY['fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'default_transaction_isolation']) AS name
)
SELECT w.name, s.setting AS value, 'server' AS scope FROM watched w JOIN pg_settings s ON s.name = w.name
UNION ALL
SELECT w.name, split_part(c.entry, '=', 2), coalesce(r.rolname, 'database ' || current_database())::text
FROM pg_db_role_setting o CROSS JOIN LATERAL unnest(o.setconfig) AS c (entry)
JOIN watched w ON w.name = split_part(c.entry, '=', 1)
LEFT JOIN pg_roles r ON r.oid = o.setrole
WHERE (o.setdatabase = 0 OR o.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND (o.setrole = 0 OR r.rolname LIKE 'holdfast%')
ORDER BY 1, 3
