-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.claim */ 
WITH candidate AS MATERIALIZED (
  SELECT g.id, g.project_id, g.claim_epoch, g.queue, g.concurrency_key, g.rate_key, g.rate_weight, g.priority, g.eligible_at FROM holdfast.instance g
  WHERE g.status = 'runnable' AND g.queue = $1::text
    AND (g.machine || '/' || g.version) = ANY ($2::text[])
    AND NOT EXISTS (SELECT FROM holdfast.queue q WHERE q.name = $3::text AND q.paused_at IS NOT NULL)
  ORDER BY g.priority, g.eligible_at, g.id
  LIMIT $4::integer
  FOR NO KEY UPDATE OF g SKIP LOCKED
), placed AS MATERIALIZED (
  SELECT candidate.*, row_number() OVER (ORDER BY priority, eligible_at, id) AS place FROM candidate
), limited AS MATERIALIZED (
  SELECT p.*, gate.capacity, rate.rate, rate.period_ms, rate.burst, rate.shards, rate.revision
  FROM placed p
  LEFT JOIN holdfast.limit_policy gate
    ON gate.project_id = p.project_id AND gate.kind = 'gate' AND gate.name = split_part(p.concurrency_key, ':', 1)
  LEFT JOIN holdfast.limit_policy rate
    ON rate.project_id = p.project_id AND rate.kind = 'rate' AND rate.name = split_part(p.rate_key, ':', 1)
  WHERE p.concurrency_key IS NOT NULL OR p.rate_key IS NOT NULL
), slotted AS MATERIALIZED (
  SELECT l.*,
    CASE WHEN l.capacity IS NOT NULL AND l.key_rank = 1 THEN ARRAY(
      SELECT s.slot FROM holdfast.gate_slot s
      WHERE s.project_id = l.project_id AND s.key = l.concurrency_key AND s.slot < l.capacity AND s.holder_id IS NULL
      ORDER BY s.slot LIMIT l.wanted + above.held FOR NO KEY UPDATE SKIP LOCKED
    ) END AS slots_of_first,
    CASE WHEN l.capacity IS NOT NULL AND l.key_rank = 1 THEN coalesce((
      SELECT s.slot + 1 FROM holdfast.gate_slot s WHERE s.project_id = l.project_id AND s.key = l.concurrency_key AND s.slot >= l.capacity - 1
      ORDER BY s.slot DESC LIMIT 1
    ), (
      SELECT s.slot + 1 FROM holdfast.gate_slot s WHERE s.project_id = l.project_id AND s.key = l.concurrency_key
      ORDER BY s.slot DESC LIMIT 1 FOR KEY SHARE SKIP LOCKED
    ), 0) END AS made_of_first,
    above.held AS above_of_first,
    CASE WHEN l.capacity IS NULL THEN NOT EXISTS (
      SELECT FROM holdfast.instance e
      WHERE e.project_id = l.project_id AND e.concurrency_key = l.concurrency_key
        AND e.status = 'executing' AND e.concurrency_key IS NOT NULL AND e.gate_slot IS NULL
    ) AND NOT EXISTS (
      SELECT FROM holdfast.instance f
      WHERE f.project_id = l.project_id AND f.concurrency_key = l.concurrency_key AND f.queue = l.queue
        AND f.status IN ('runnable', 'throttled') AND f.concurrency_key IS NOT NULL
        AND (f.priority, f.eligible_at, f.id) < (l.priority, l.eligible_at, l.id)
    ) END AS first_in_line
  FROM (
    SELECT *, row_number() OVER (PARTITION BY project_id, concurrency_key ORDER BY place) AS key_rank,
      count(*) OVER (PARTITION BY project_id, concurrency_key) AS wanted
    FROM limited WHERE concurrency_key IS NOT NULL ORDER BY project_id, concurrency_key, place
  ) l
  -- As many slots as are held above the capacity give no room, so that many more have to be looked at.
  CROSS JOIN LATERAL (SELECT CASE WHEN l.capacity IS NOT NULL AND l.key_rank = 1 THEN (
    SELECT count(*) FROM holdfast.gate_slot s
    WHERE s.project_id = l.project_id AND s.key = l.concurrency_key AND s.slot >= l.capacity AND s.holder_id IS NOT NULL
  ) END AS held OFFSET 0) above
), gated AS MATERIALIZED (
  SELECT g.*, CASE
      WHEN g.capacity IS NULL THEN g.first_in_line
      ELSE g.key_rank <= g.slots_free + greatest(g.capacity - g.slots_made, 0) - g.held_above
    END AS key_free
  FROM (
    SELECT s.*, first_value(cardinality(slots_of_first)) OVER in_key AS slots_free, first_value(made_of_first) OVER in_key AS slots_made,
      first_value(above_of_first) OVER in_key AS held_above
    FROM slotted s WINDOW in_key AS (PARTITION BY project_id, concurrency_key ORDER BY place)
  ) g
), bucketed AS MATERIALIZED (
  SELECT r.*, waiting.first_priority, waiting.first_eligible_at, waiting.first_id,
    CASE WHEN r.rate_rank = 1 THEN ARRAY(
      SELECT b FROM holdfast.rate_bucket b WHERE b.project_id = r.project_id AND b.key = r.rate_key AND b.shard < r.shards
      ORDER BY b.shard FOR NO KEY UPDATE SKIP LOCKED
    ) END AS buckets,
    CASE WHEN r.rate_rank = 1 THEN (
      SELECT count(*) FROM holdfast.rate_bucket b WHERE b.project_id = r.project_id AND b.key = r.rate_key AND b.shard < r.shards
    ) END AS buckets_made,
    CASE WHEN r.rate_rank = 1 THEN (
      SELECT w.throttled_until FROM holdfast.instance w
      WHERE w.project_id = r.project_id AND w.rate_key = r.rate_key AND w.status = 'throttled' AND w.throttled_until IS NOT NULL
      ORDER BY w.throttled_until DESC LIMIT 1
    ) END AS last_until
  FROM (
    SELECT u.*, row_number() OVER (PARTITION BY project_id, rate_key ORDER BY place) AS rate_rank
    FROM (
      SELECT id, project_id, claim_epoch, concurrency_key, rate_key, rate_weight, priority, eligible_at, place, rate, period_ms, burst, shards, revision,
        capacity, slots_free, slots_made, slots_of_first
      FROM gated WHERE key_free AND burst IS NOT NULL
      UNION ALL
      SELECT id, project_id, claim_epoch, concurrency_key, rate_key, rate_weight, priority, eligible_at, place, rate, period_ms, burst, shards, revision,
        NULL, NULL, NULL, NULL
      FROM limited WHERE concurrency_key IS NULL AND burst IS NOT NULL
    ) u
    ORDER BY project_id, rate_key, place
  ) r
  LEFT JOIN LATERAL (
    SELECT w.priority AS first_priority, w.eligible_at AS first_eligible_at, w.id AS first_id FROM holdfast.instance w
    WHERE r.rate_rank = 1 AND w.project_id = r.project_id AND w.rate_key = r.rate_key AND w.status = 'throttled' AND w.throttled_until IS NOT NULL
    ORDER BY w.throttled_until, w.priority, w.eligible_at, w.id LIMIT 1
  ) waiting ON true
), supplied AS MATERIALIZED (
  SELECT r.*, CASE WHEN r.rate_rank = 1 THEN (SELECT coalesce(sum(s.tokens), 0) FROM (
  SELECT b.shard, b.revision, false AS new, c.cap, least(c.cap, h.held + f.refill) AS tokens,
    CASE WHEN h.held + f.refill >= c.cap THEN now()
      ELSE h.since + ceil(f.refill * r.period_ms * r.shards / greatest(r.rate * 1000, 1)) * interval '1 microsecond' END AS refilled_at
  FROM unnest(r.buckets) b
  CROSS JOIN LATERAL (SELECT r.burst * 1000000::bigint / r.shards + (b.shard < r.burst * 1000000::bigint % r.shards)::integer AS cap) c
  CROSS JOIN LATERAL (
    SELECT CASE WHEN b.revision < r.revision - 1 THEN 0 ELSE b.tokens END AS held,
      CASE WHEN b.revision < r.revision - 1 THEN now() ELSE b.refilled_at END AS since
  ) h
  CROSS JOIN LATERAL (
    SELECT floor(greatest(extract(epoch FROM now() - h.since), 0) * 1000000 * r.rate * 1000 / (r.period_ms * r.shards)) AS refill
  ) f
  UNION ALL
  SELECT n, r.revision, true, c.cap, CASE WHEN r.buckets_made = 0 THEN c.cap ELSE 0 END, now()
  FROM generate_series(0, r.shards - 1) n
  CROSS JOIN LATERAL (SELECT r.burst * 1000000::bigint / r.shards + (n < r.burst * 1000000::bigint % r.shards)::integer AS cap) c
  WHERE r.buckets_made < r.shards
    AND NOT EXISTS (SELECT FROM holdfast.rate_bucket x WHERE x.project_id = r.project_id AND x.key = r.rate_key AND x.shard = n)) s) END AS tokens_of_first
  FROM bucketed r
), rated AS MATERIALIZED (
  SELECT r.*, NOT r.behind AND r.reach <= r.tokens AS fits
  FROM (
    SELECT l.*,
      sum(least(l.rate_weight, l.burst)) FILTER (WHERE NOT l.behind) OVER in_key * 1000000 AS reach,
      sum(least(l.rate_weight, l.burst)) FILTER (WHERE l.behind) OVER in_key * 1000000 AS reach_behind
    FROM (
      SELECT s.*, first_value(tokens_of_first) OVER in_key AS tokens, first_value(last_until) OVER in_key AS line_until,
        first_value(cardinality(buckets) < buckets_made) OVER in_key AS contended,
        coalesce((first_value(first_priority) OVER in_key, first_value(first_eligible_at) OVER in_key, first_value(first_id) OVER in_key)
          < (priority, eligible_at, id), false) AS behind
      FROM supplied s WINDOW in_key AS (PARTITION BY project_id, rate_key ORDER BY place)
    ) l
    WINDOW in_key AS (PARTITION BY l.project_id, l.rate_key ORDER BY l.place)
  ) r
), verdict AS MATERIALIZED (
  SELECT r.id, r.project_id, r.claim_epoch, r.concurrency_key, r.place, r.capacity, r.slots_free, r.slots_made, r.slots_of_first,
    CASE WHEN r.fits THEN 'admissible' WHEN NOT r.contended THEN 'denied' END AS says,
    CASE
      WHEN r.fits THEN NULL
      WHEN r.rate = 0 THEN 'infinity'::timestamptz
      WHEN r.behind THEN greatest(r.line_until, now()) + ceil(r.reach_behind * r.period_ms / (r.rate * 1000)) * interval '1 microsecond'
      ELSE now() + ceil((r.reach - r.tokens) * r.period_ms / (r.rate * 1000)) * interval '1 microsecond'
    END AS until
  FROM rated r
  UNION ALL
  SELECT id, project_id, claim_epoch, concurrency_key, place, capacity, slots_free, slots_made, slots_of_first,
    CASE WHEN key_free THEN 'admissible' WHEN $5::boolean THEN 'denied' END, NULL
  FROM gated WHERE NOT key_free OR burst IS NULL
  UNION ALL
  SELECT id, project_id, claim_epoch, concurrency_key, place, NULL, NULL, NULL, NULL, 'admissible', NULL
  FROM limited WHERE concurrency_key IS NULL AND burst IS NULL
), cut AS MATERIALIZED (
  SELECT max(place) AS place FROM (
    SELECT place FROM placed WHERE concurrency_key IS NULL AND rate_key IS NULL
    UNION ALL
    SELECT place FROM verdict WHERE says = 'admissible'
    ORDER BY place LIMIT $6::integer
  ) best
), final AS MATERIALIZED (
  SELECT *, says = 'admissible' AND place <= (SELECT place FROM cut) AS chosen FROM verdict
), seated AS MATERIALIZED (
  -- Each seat meets its slot in a window: an array of a thousand slots, carried by a thousand rows, took ten times as long as all the rest.
  SELECT * FROM (
    SELECT *, seat > slots_free AS new,
      CASE WHEN seat <= slots_free THEN max(free_slot) OVER (PARTITION BY project_id, key, seat) ELSE slots_made + seat - slots_free - 1 END::integer AS slot
    FROM (
      SELECT project_id, concurrency_key AS key, row_number() OVER (PARTITION BY project_id, concurrency_key ORDER BY place) AS seat,
        id, claim_epoch, slots_free, slots_made, NULL::integer AS free_slot
      FROM final WHERE chosen AND capacity IS NOT NULL
      UNION ALL
      SELECT f.project_id, f.concurrency_key, s.seat, NULL, NULL, NULL, NULL, s.slot
      FROM final f CROSS JOIN LATERAL unnest(f.slots_of_first) WITH ORDINALITY AS s (slot, seat)
    ) u
  ) m
  WHERE id IS NOT NULL ORDER BY project_id, key, seat
), taken AS (
  UPDATE holdfast.gate_slot s SET holder_id = t.id, holder_epoch = t.claim_epoch + 1, changed_at = now()
  FROM (SELECT * FROM seated WHERE NOT new OFFSET 0) t
  WHERE s.project_id = t.project_id AND s.key = ANY (ARRAY[t.key]) AND s.slot = ANY (ARRAY[t.slot])
), made AS (
  INSERT INTO holdfast.gate_slot (project_id, key, slot, holder_id, holder_epoch)
  SELECT project_id, key, slot, id, claim_epoch + 1 FROM seated WHERE new
), debit AS MATERIALIZED (
  SELECT r.project_id, r.rate_key, r.revision AS policy_revision, s.*, least(s.tokens, greatest(coalesce(r.spent, 0) - coalesce(sum(s.tokens) OVER (
    PARTITION BY r.project_id, r.rate_key ORDER BY s.shard ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0), 0)) AS spent
  FROM (
    SELECT r.*, max(r.reach) FILTER (WHERE r.fits AND r.place <= (SELECT place FROM cut))
      OVER (PARTITION BY r.project_id, r.rate_key) AS spent
    FROM rated r
  ) r
  CROSS JOIN LATERAL (
  SELECT b.shard, b.revision, false AS new, c.cap, least(c.cap, h.held + f.refill) AS tokens,
    CASE WHEN h.held + f.refill >= c.cap THEN now()
      ELSE h.since + ceil(f.refill * r.period_ms * r.shards / greatest(r.rate * 1000, 1)) * interval '1 microsecond' END AS refilled_at
  FROM unnest(r.buckets) b
  CROSS JOIN LATERAL (SELECT r.burst * 1000000::bigint / r.shards + (b.shard < r.burst * 1000000::bigint % r.shards)::integer AS cap) c
  CROSS JOIN LATERAL (
    SELECT CASE WHEN b.revision < r.revision - 1 THEN 0 ELSE b.tokens END AS held,
      CASE WHEN b.revision < r.revision - 1 THEN now() ELSE b.refilled_at END AS since
  ) h
  CROSS JOIN LATERAL (
    SELECT floor(greatest(extract(epoch FROM now() - h.since), 0) * 1000000 * r.rate * 1000 / (r.period_ms * r.shards)) AS refill
  ) f
  UNION ALL
  SELECT n, r.revision, true, c.cap, CASE WHEN r.buckets_made = 0 THEN c.cap ELSE 0 END, now()
  FROM generate_series(0, r.shards - 1) n
  CROSS JOIN LATERAL (SELECT r.burst * 1000000::bigint / r.shards + (n < r.burst * 1000000::bigint % r.shards)::integer AS cap) c
  WHERE r.buckets_made < r.shards
    AND NOT EXISTS (SELECT FROM holdfast.rate_bucket x WHERE x.project_id = r.project_id AND x.key = r.rate_key AND x.shard = n)) s
  WHERE r.rate_rank = 1
), debited AS (
  UPDATE holdfast.rate_bucket b
  SET tokens = d.tokens - d.spent, capacity = d.cap, refilled_at = d.refilled_at, revision = d.policy_revision
  FROM (SELECT * FROM debit WHERE NOT new AND (spent > 0 OR revision <> policy_revision) ORDER BY project_id, rate_key, shard) d
  WHERE b.project_id = d.project_id AND b.key = ANY (ARRAY[d.rate_key]) AND b.shard = ANY (ARRAY[d.shard])
), filled AS (
  INSERT INTO holdfast.rate_bucket (project_id, key, shard, revision, tokens, capacity, refilled_at)
  SELECT project_id, rate_key, shard, policy_revision, tokens - spent, cap, refilled_at FROM debit WHERE new ORDER BY project_id, rate_key, shard
), decided AS MATERIALIZED (
  SELECT id, true AS admitted, NULL::integer AS slot, NULL::timestamptz AS until FROM placed
  WHERE concurrency_key IS NULL AND rate_key IS NULL AND place <= (SELECT place FROM cut)
  UNION ALL
  SELECT id, true, slot, NULL FROM seated
  UNION ALL
  SELECT * FROM (
    SELECT id, chosen, NULL::integer, until FROM final WHERE chosen AND capacity IS NULL OR says = 'denied' ORDER BY project_id, concurrency_key
  ) in_key_order
), claimed AS (
  UPDATE holdfast.instance g SET
    status = CASE WHEN d.admitted THEN 'executing' ELSE 'throttled' END::holdfast.instance_status,
    claim_epoch = g.claim_epoch + d.admitted::integer,
    claimed_by = CASE WHEN d.admitted THEN $7::text END,
    lease_expires_at = CASE WHEN d.admitted THEN now() + $8::integer * interval '1 millisecond' END,
    gate_slot = d.slot, throttled_until = d.until, updated_at = now()
  FROM decided d WHERE g.id = ANY (ARRAY[d.id])
  RETURNING g.id, g.project_id, g.claim_epoch, g.status, g.concurrency_key, g.throttled_until, g.machine, g.version, g.step, g.state, g.attempt,
    g.reclaims, g.awaits, g.traceparent, g.priority, g.eligible_at
)
SELECT * FROM (
  SELECT id, project_id, claim_epoch, status, concurrency_key, machine, version, step, attempt, reclaims, awaits, traceparent,
    CASE WHEN status = 'executing' THEN state END AS state,
    -- An endless wait is told as a long one: neither timers nor JSON know infinity.
    CASE WHEN throttled_until = 'infinity' THEN 1e15 ELSE ceil(extract(epoch FROM throttled_until - now()) * 1000) END::float8 AS throttled_ms
  FROM claimed ORDER BY priority, eligible_at, id
) decided_on
UNION ALL
SELECT id, project_id, claim_epoch, 'runnable', concurrency_key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM verdict WHERE says IS NULL AND NOT $9::boolean
