-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.fire_ticks */ 
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(
    $1::bigint[],
    $2::text[],
    $3::bigint[],
    $4::timestamptz[],
    $5::timestamptz[]
  ) WITH ORDINALITY AS g (project_id, name, revision, next_at, missed_at, ord)
), locked AS MATERIALIZED (
  SELECT given.ord, given.next_at, given.missed_at, s.project_id, s.name, s.machine, s.version, s.input, s.queue, s.priority, s.concurrency_key, s.overlap
  FROM given
  JOIN holdfast.schedule s ON s.project_id = given.project_id AND s.name = given.name AND s.revision = given.revision
  ORDER BY s.project_id, s.name
  FOR NO KEY UPDATE OF s SKIP LOCKED
), declared AS MATERIALIZED (
  SELECT locked.*, m.version IS NOT NULL AS known, m.version AS machine_version, coalesce(locked.queue, m.queue) AS instance_queue,
    CASE locked.overlap WHEN 'skip' THEN 'schedule:' || locked.name END AS correlation_key
  FROM locked
  LEFT JOIN LATERAL (
    SELECT m.version, m.queue FROM holdfast.machine m
    WHERE m.name = locked.machine AND (locked.version IS NULL OR m.version = locked.version)
    ORDER BY m.version DESC LIMIT 1
  ) m ON true
), tick AS MATERIALIZED (
  SELECT nextval('holdfast.instance_id_seq') AS id, t.* FROM (
    SELECT d.*, t.tick_at
    FROM unnest($6::bigint[], $7::timestamptz[]) AS t (ord, tick_at)
    JOIN declared d ON d.ord = t.ord
    WHERE d.known AND NOT EXISTS (
      SELECT FROM holdfast.schedule_run r WHERE r.project_id = d.project_id AND r.schedule = d.name AND r.tick_at = t.tick_at
    )
    ORDER BY t.tick_at, d.ord
  ) t
), inserted AS (
  INSERT INTO holdfast.instance (id, project_id, machine, version, queue, state, priority, correlation_key, concurrency_key)
  OVERRIDING SYSTEM VALUE
  SELECT id, project_id, machine, machine_version, instance_queue,
    regexp_replace(
      input::text, '(^|[^\\])"\{\{tick\}\}"(?!:)', '\1"' || to_char(tick_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || '"', 'g'
    )::jsonb,
    priority, correlation_key,
    CASE overlap WHEN 'queue' THEN ':schedule:' || name ELSE concurrency_key END
  FROM tick
  ORDER BY project_id, correlation_key, tick_at
  ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
  RETURNING id
), run AS (
  INSERT INTO holdfast.schedule_run (project_id, schedule, tick_at, instance_id)
  SELECT project_id, name, tick_at, CASE WHEN id = ANY (ARRAY(SELECT id FROM inserted)) THEN id END FROM tick
  RETURNING project_id, schedule, tick_at, instance_id
), result AS MATERIALIZED (
  SELECT d.*, r.fired, r.overlapped, newest.tick_at AS last_at, newest.instance_id AS last_instance_id, greatest(d.missed_at, r.overlapped_at) AS skipped_at,
    CASE WHEN r.overlapped_at IS NULL OR d.missed_at > r.overlapped_at THEN 'missed' ELSE 'overlap' END AS skipped_why
  FROM declared d
  CROSS JOIN LATERAL (
    SELECT count(instance_id)::integer AS fired, (count(*) - count(instance_id))::integer AS overlapped,
      max(tick_at) FILTER (WHERE instance_id IS NULL) AS overlapped_at
    FROM run WHERE run.project_id = d.project_id AND run.schedule = d.name
  ) r
  LEFT JOIN LATERAL (
    SELECT tick_at, instance_id FROM run
    WHERE run.project_id = d.project_id AND run.schedule = d.name AND instance_id IS NOT NULL
    ORDER BY tick_at DESC LIMIT 1
  ) newest ON true
), moved AS (
  UPDATE holdfast.schedule s SET revision = s.revision + 1, next_at = result.next_at, due_at = result.next_at,
    last_at = coalesce(result.last_at, s.last_at), last_instance_id = coalesce(result.last_instance_id, s.last_instance_id),
    skipped_at = coalesce(result.skipped_at, s.skipped_at),
    skipped_why = CASE WHEN result.skipped_at IS NULL THEN s.skipped_why ELSE result.skipped_why END,
    failures = 0, last_error = NULL, last_error_at = NULL
  FROM result WHERE s.project_id = result.project_id AND s.name = result.name AND result.known
)
SELECT project_id, name, NOT known AS unknown_machine, fired, overlapped, CASE WHEN fired > 0 THEN instance_queue END AS queue FROM result
