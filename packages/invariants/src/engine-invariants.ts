import { sql } from 'kysely'
import { type Invariant, type InvariantParams, invariant, limit } from './invariant.ts'

const ago = ({ graceMs }: InvariantParams) => sql`now() - ${graceMs}::integer * interval '1 millisecond'`

/** What must hold in the engine's tables, whatever died when. Each is enforced by what docs/guarantees.md names; this is the look afterwards. */
export const engineInvariants: readonly Invariant[] = [
  invariant(
    'E1',
    'broken',
    'An instance executes if and only if it is claimed and leased.',
    () => sql`
SELECT id, status, claimed_by, lease_expires_at FROM holdfast.instance
WHERE (status = 'executing') <> (claimed_by IS NOT NULL) OR (status = 'executing') <> (lease_expires_at IS NOT NULL) ${limit}`,
  ),
  invariant(
    'E2',
    'broken',
    'Of the instances of a project with one serial key, at most one executes.',
    () => sql`
SELECT project_id, concurrency_key, array_agg(id) AS ids FROM holdfast.instance
WHERE status = 'executing' AND concurrency_key IS NOT NULL AND gate_slot IS NULL GROUP BY project_id, concurrency_key HAVING count(*) > 1 ${limit}`,
  ),
  invariant(
    'E3',
    'broken',
    'Every live instance occupies its correlation key, and no two instances of a project occupy the same.',
    () => sql`
SELECT project_id, correlation_key, array_agg(id) AS ids FROM holdfast.instance
WHERE correlation_key IS NOT NULL AND (correlation_guard IS NOT NULL OR status NOT IN ('done', 'failed', 'cancelled'))
GROUP BY project_id, correlation_key HAVING count(*) > 1 OR bool_or(correlation_guard IS NULL) ${limit}`,
  ),
  // What ends a claim has a worker; what a person does between two claims, a cancellation or a retry, has none.
  invariant(
    'E4',
    'broken',
    'A claim has at most one ending: the history holds one transition of its worker for each claim.',
    () => sql`
SELECT instance_id, claim_epoch, count(*) AS transitions FROM holdfast.transition WHERE worker IS NOT NULL GROUP BY instance_id, claim_epoch HAVING count(*) > 1 ${limit}`,
  ),
  invariant(
    'E5',
    'broken',
    'An instance that has ended has ended once, and once more for each time that a person has retried it.',
    () => sql`
SELECT t.instance_id, array_agg(t.to_status) AS endings FROM holdfast.transition t
WHERE t.to_status IN ('done', 'failed', 'cancelled') OR (t.kind = 'retry' AND t.worker IS NULL)
GROUP BY t.instance_id
HAVING count(*) FILTER (WHERE t.to_status IN ('done', 'failed', 'cancelled')) > 1 + count(*) FILTER (WHERE t.kind = 'retry' AND t.worker IS NULL) ${limit}`,
  ),
  invariant(
    'E6',
    'stuck',
    'No staged outcome waits to be applied.',
    (params) => sql`
SELECT instance_id, claim_epoch, kind, staged_at FROM holdfast.outcome WHERE staged_at < ${ago(params)} ${limit}`,
  ),
  invariant(
    'E7',
    'stuck',
    'No claim outlives its lease, unless its outcome is staged.',
    (params) => sql`
SELECT g.id, g.claimed_by, g.lease_expires_at FROM holdfast.instance g
WHERE g.status = 'executing' AND g.lease_expires_at < ${ago(params)}
  AND NOT EXISTS (SELECT FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch) ${limit}`,
  ),
  invariant(
    'E8',
    'stuck',
    'Nothing that is scheduled is overdue.',
    (params) => sql`
SELECT id, queue, eligible_at FROM holdfast.instance WHERE status = 'scheduled' AND eligible_at < ${ago(params)} ${limit}`,
  ),
  invariant(
    'E9',
    'stuck',
    'No await outlives its deadline.',
    (params) => sql`
SELECT id, status, awaits, await_deadline FROM holdfast.instance
WHERE status IN ('awaiting_signal', 'awaiting_children') AND await_deadline < ${ago(params)} ${limit}`,
  ),
  // A pack may lie beside signals that its last step was shown and that do not wake it again. Which ones those are is not kept, but each was sent
  // before the claim, and so before the park: one that was sent after the park has been missed. One whose transaction began before the park and
  // committed beside it is not seen here; the interleaving tests look for that one. A clock of the database that is set back can make a false alarm.
  invariant(
    'E10',
    'broken',
    'No instance sleeps beside a signal that it waits for and that came after it had parked.',
    () => sql`
SELECT g.id, g.awaits, s.id AS signal_id, s.name FROM holdfast.instance g JOIN holdfast.signal s ON s.target_id = g.id
WHERE g.status = 'awaiting_signal' AND s.name = ANY (g.awaits) AND s.inserted_at > g.updated_at ${limit}`,
  ),
  invariant(
    'E11',
    'broken',
    'A parent waits for no more children than are live of those that it spawned last.',
    () => sql`
SELECT p.id, p.children_pending, count(c.id) AS live FROM holdfast.instance p
LEFT JOIN holdfast.instance c ON c.parent_id = p.id AND c.parent_epoch = p.claim_epoch AND c.status NOT IN ('done', 'failed', 'cancelled')
WHERE p.status = 'awaiting_children' GROUP BY p.id, p.children_pending HAVING p.children_pending > count(c.id) ${limit}`,
  ),
  invariant(
    'E12',
    'broken',
    'Every instance belongs to a project.',
    () => sql`
SELECT g.id, g.project_id FROM holdfast.instance g WHERE NOT EXISTS (SELECT FROM holdfast.project p WHERE p.id = g.project_id) ${limit}`,
  ),
  invariant(
    'E13',
    'broken',
    'Every signal and every receipt belongs to an instance.',
    () => sql`
SELECT 'signal' AS of, s.target_id FROM holdfast.signal s WHERE NOT EXISTS (SELECT FROM holdfast.instance g WHERE g.id = s.target_id)
UNION ALL
SELECT 'receipt', r.target_id FROM holdfast.signal_receipt r WHERE NOT EXISTS (SELECT FROM holdfast.instance g WHERE g.id = r.target_id) ${limit}`,
  ),
  invariant(
    'E14',
    'broken',
    'An instance that has ended waits for nothing.',
    () => sql`
SELECT id, status, awaits, await_deadline, children_pending, throttled_until FROM holdfast.instance
WHERE status IN ('done', 'failed', 'cancelled')
  AND (awaits IS NOT NULL OR await_deadline IS NOT NULL OR children_pending > 0 OR throttled_until IS NOT NULL) ${limit}`,
  ),
  invariant(
    'E15',
    'broken',
    'An outcome in quarantine has not been applied: its claim ended in a failure, if it still stood.',
    () => sql`
SELECT q.instance_id, q.claim_epoch FROM holdfast.outcome_quarantine q
JOIN holdfast.transition t ON t.instance_id = q.instance_id AND t.claim_epoch = q.claim_epoch AND t.worker IS NOT NULL
  AND t.to_status <> 'failed' ${limit}`,
  ),
  invariant(
    'E16',
    'broken',
    'A claim has at most one staged outcome.',
    () => sql`
SELECT instance_id, claim_epoch, count(*) AS outcomes FROM holdfast.outcome GROUP BY instance_id, claim_epoch HAVING count(*) > 1 ${limit}`,
  ),
  invariant(
    'E17',
    'broken',
    'No outcome and no transition is of a claim that has not been made.',
    () => sql`
SELECT 'outcome' AS of, o.instance_id, o.claim_epoch, g.claim_epoch AS claims FROM holdfast.outcome o
JOIN holdfast.instance g ON g.id = o.instance_id WHERE o.claim_epoch > g.claim_epoch
UNION ALL
SELECT 'transition', t.instance_id, t.claim_epoch, g.claim_epoch FROM holdfast.transition t
JOIN holdfast.instance g ON g.id = t.instance_id WHERE t.claim_epoch > g.claim_epoch ${limit}`,
  ),
  invariant(
    'E18',
    'broken',
    'An instance that is parked says for what.',
    () => sql`
SELECT id, status, awaits, children_pending FROM holdfast.instance
WHERE (status = 'awaiting_signal' AND coalesce(cardinality(awaits), 0) = 0) OR (status = 'awaiting_children' AND children_pending <= 0) ${limit}`,
  ),
  invariant(
    'E19',
    'broken',
    'An outcome that the database refused has left its instance failed, not executing.',
    () => sql`
SELECT g.id, g.status, q.claim_epoch FROM holdfast.outcome_quarantine q
JOIN holdfast.instance g ON g.id = q.instance_id AND g.claim_epoch = q.claim_epoch WHERE g.status = 'executing' ${limit}`,
  ),
  invariant(
    'E20',
    'broken',
    'What executes through a gate holds its slot, for the claim that it executes under.',
    () => sql`
SELECT g.id, g.concurrency_key, g.gate_slot, g.claim_epoch FROM holdfast.instance g
WHERE g.status = 'executing' AND g.gate_slot IS NOT NULL AND NOT EXISTS (
  SELECT FROM holdfast.gate_slot s
  WHERE s.project_id = g.project_id AND s.key = g.concurrency_key AND s.slot = g.gate_slot AND s.holder_id = g.id AND s.holder_epoch = g.claim_epoch
) ${limit}`,
  ),
  invariant(
    'E21',
    'broken',
    'A slot is held by nothing but a claim that executes, through that gate and with that slot.',
    () => sql`
SELECT s.project_id, s.key, s.slot, s.holder_id, s.holder_epoch FROM holdfast.gate_slot s
WHERE s.holder_id IS NOT NULL AND NOT EXISTS (
  SELECT FROM holdfast.instance g
  WHERE g.id = s.holder_id AND g.claim_epoch = s.holder_epoch AND g.status = 'executing'
    AND g.project_id = s.project_id AND g.concurrency_key = s.key AND g.gate_slot = s.slot
) ${limit}`,
  ),
  invariant(
    'E22',
    'broken',
    'A claim holds one slot.',
    () => sql`
SELECT holder_id, array_agg(key || '/' || slot) AS slots FROM holdfast.gate_slot
WHERE holder_id IS NOT NULL GROUP BY holder_id HAVING count(*) > 1 ${limit}`,
  ),
  // With one missing a gate would admit fewer than it may, for as long as its key is in use.
  invariant(
    'E23',
    'broken',
    'The slots of a key are numbered from 0 without a gap.',
    () => sql`
SELECT project_id, key, count(*) AS slots, max(slot) AS highest FROM holdfast.gate_slot
GROUP BY project_id, key HAVING max(slot) + 1 <> count(*) OR min(slot) <> 0 ${limit}`,
  ),
  // A shard of an earlier revision has the capacity of that one until a claim comes by.
  invariant(
    'E24',
    'broken',
    'A bucket holds no less than nothing and no more than its capacity, and the shards of the policy in force have no more than its burst.',
    () => sql`
SELECT b.project_id, b.key, array_agg(b.shard) AS shards, min(b.tokens) AS least, sum(b.capacity) AS capacity FROM holdfast.rate_bucket b
LEFT JOIN holdfast.limit_policy p ON p.project_id = b.project_id AND p.kind = 'rate' AND p.name = split_part(b.key, ':', 1)
GROUP BY b.project_id, b.key, p.revision, p.burst, p.shards
HAVING bool_or(b.tokens NOT BETWEEN 0 AND b.capacity) OR p.revision IS NULL
  OR bool_or(b.revision > p.revision OR (b.revision = p.revision AND b.shard >= p.shards))
  OR sum(b.capacity) FILTER (WHERE b.revision = p.revision) > p.burst * 1000000::bigint ${limit}`,
  ),
  invariant(
    'E25',
    'broken',
    'What is throttled says what will wake it: a key, or a time.',
    () => sql`
SELECT id, status, concurrency_key, rate_key, throttled_until FROM holdfast.instance
WHERE (status = 'throttled' AND concurrency_key IS NULL AND throttled_until IS NULL) OR (status <> 'throttled' AND throttled_until IS NOT NULL) ${limit}`,
  ),
  // A key at which anything has moved within the grace may be just about to wake somebody.
  invariant(
    'E26',
    'stuck',
    'Nobody is kept waiting for a key that is free.',
    (params) => sql`
WITH waited AS (
  SELECT w.project_id, w.concurrency_key AS key, gate.capacity
  FROM holdfast.instance w
  LEFT JOIN holdfast.limit_policy gate
    ON gate.project_id = w.project_id AND gate.kind = 'gate' AND gate.name = split_part(w.concurrency_key, ':', 1)
  WHERE w.status = 'throttled' AND w.throttled_until IS NULL AND w.concurrency_key IS NOT NULL
    AND (gate.updated_at IS NULL OR gate.updated_at < ${ago(params)})
  GROUP BY w.project_id, w.concurrency_key, gate.capacity
), free AS (
  SELECT k.*, coalesce(k.capacity, 1) - CASE WHEN k.capacity IS NULL
    THEN (SELECT count(*) FROM holdfast.instance e WHERE e.project_id = k.project_id AND e.concurrency_key = k.key AND e.status = 'executing')
    ELSE (SELECT count(*) FROM holdfast.gate_slot s WHERE s.project_id = k.project_id AND s.key = k.key AND s.holder_id IS NOT NULL)
  END AS free
  FROM waited k
  WHERE NOT EXISTS (
    SELECT FROM holdfast.instance m WHERE m.project_id = k.project_id AND m.concurrency_key = k.key AND m.updated_at >= ${ago(params)}
  ) AND NOT EXISTS (
    SELECT FROM holdfast.gate_slot s WHERE s.project_id = k.project_id AND s.key = k.key AND s.changed_at >= ${ago(params)}
  )
), line AS (
  SELECT w.id, w.queue, w.status, w.throttled_until, f.key, f.free,
    row_number() OVER (PARTITION BY w.project_id, w.concurrency_key, w.queue ORDER BY w.priority, w.eligible_at, w.id) AS place
  FROM free f JOIN holdfast.instance w ON w.project_id = f.project_id AND w.concurrency_key = f.key
  WHERE w.status IN ('runnable', 'throttled') AND (f.capacity IS NULL OR w.throttled_until IS NULL)
)
SELECT id, queue, key, free, place FROM line WHERE status = 'throttled' AND throttled_until IS NULL AND place <= free ${limit}`,
  ),
  invariant(
    'E27',
    'stuck',
    'Nobody waits for a rate limit beyond the time that it was given.',
    (params) => sql`
SELECT id, rate_key, throttled_until FROM holdfast.instance WHERE status = 'throttled' AND throttled_until < ${ago(params)} ${limit}`,
  ),
  // One that a person has retried since goes on by itself, and has no epoch of a spawn any more.
  invariant(
    'E28',
    'broken',
    'The children of a cancelled instance have ended or been asked to, or it is noted that they are still to be.',
    () => sql`
SELECT c.id, c.status, p.id AS parent_id FROM holdfast.instance p
JOIN holdfast.instance c ON c.parent_id = p.id
WHERE p.status = 'cancelled' AND c.parent_epoch IS NOT NULL AND c.status NOT IN ('done', 'failed', 'cancelled') AND c.cancel_requested_at IS NULL
  AND NOT EXISTS (SELECT FROM holdfast.cascade n WHERE n.parent_id = p.id) ${limit}`,
  ),
]
