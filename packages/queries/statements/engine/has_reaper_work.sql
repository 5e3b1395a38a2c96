-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.has_reaper_work */ 
SELECT
  EXISTS (SELECT FROM holdfast.instance WHERE status = 'executing' AND lease_expires_at < now()) AS expired,
  EXISTS (SELECT FROM holdfast.instance WHERE status = 'executing' AND cancel_requested_at IS NOT NULL
    AND cancel_requested_at < now() - $1::bigint * interval '1 millisecond') AS overdue,
  EXISTS (SELECT FROM holdfast.cascade) AS cascades
