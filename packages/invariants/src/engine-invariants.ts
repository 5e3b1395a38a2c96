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
WHERE status = 'executing' AND concurrency_key IS NOT NULL GROUP BY project_id, concurrency_key HAVING count(*) > 1 ${limit}`,
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
  invariant(
    'E4',
    'broken',
    'A claim has at most one ending: the history holds one transition for each claim.',
    () => sql`
SELECT instance_id, claim_epoch, count(*) AS transitions FROM holdfast.transition GROUP BY instance_id, claim_epoch HAVING count(*) > 1 ${limit}`,
  ),
  invariant(
    'E5',
    'broken',
    'An instance that has ended has ended once.',
    () => sql`
SELECT t.instance_id, array_agg(t.to_status) AS endings FROM holdfast.transition t
WHERE t.to_status IN ('done', 'failed', 'cancelled') GROUP BY t.instance_id HAVING count(*) > 1 ${limit}`,
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
SELECT id, awaits, await_deadline FROM holdfast.instance WHERE status = 'awaiting_signal' AND await_deadline < ${ago(params)} ${limit}`,
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
    'A parent waits for exactly its children that are live.',
    () => sql`
SELECT p.id, p.children_pending, count(c.id) AS live FROM holdfast.instance p
LEFT JOIN holdfast.instance c ON c.parent_id = p.id AND c.status NOT IN ('done', 'failed', 'cancelled')
WHERE p.status = 'awaiting_children' GROUP BY p.id, p.children_pending HAVING p.children_pending <> count(c.id) ${limit}`,
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
SELECT id, status, awaits, await_deadline, children_pending FROM holdfast.instance
WHERE status IN ('done', 'failed', 'cancelled') AND (awaits IS NOT NULL OR await_deadline IS NOT NULL OR children_pending > 0) ${limit}`,
  ),
  invariant(
    'E15',
    'broken',
    'An outcome in quarantine has not been applied: its claim ended in a failure, if it still stood.',
    () => sql`
SELECT q.instance_id, q.claim_epoch FROM holdfast.outcome_quarantine q
JOIN holdfast.transition t ON t.instance_id = q.instance_id AND t.claim_epoch = q.claim_epoch AND t.to_status <> 'failed' ${limit}`,
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
]
