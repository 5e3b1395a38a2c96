-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.find_due */ 
SELECT clock.now, clock.next_in_ms, due.project_id, due.name, due.revision, due.cron, due.timezone, due.catch_up, due.next_at
FROM (
  SELECT now() AS now, (SELECT ceil(extract(epoch FROM due_at - now()) * 1000)::float8 FROM holdfast.schedule
    WHERE due_at > now() ORDER BY due_at LIMIT 1) AS next_in_ms
) clock
LEFT JOIN LATERAL (
  SELECT s.project_id, s.name, s.revision, s.cron, s.timezone, s.catch_up, s.next_at, s.due_at
  FROM holdfast.schedule s JOIN holdfast.project p ON p.id = s.project_id
  WHERE s.due_at <= now() AND p.suspended_at IS NULL
  ORDER BY s.due_at LIMIT $1::integer
) due ON true
ORDER BY due.due_at
