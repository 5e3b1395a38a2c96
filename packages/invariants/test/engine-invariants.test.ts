import { checkInvariants, engineInvariants } from '@holdfast/invariants'
import { allStatements } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
  await healthy(database.db)
})
afterAll(() => database[Symbol.asyncDispose]())

/**
 * One instance of every kind that is legal, also those that look like a violation at first sight. Ids: 1 executing with a serial key, 2 runnable with
 * the same key, 3 parked on a deadline, 4 a pack beside the signal it was shown, 5 done with its key kept, 6 scheduled, 7 a parent of 8, 9 failed by a
 * quarantined outcome, 10 executing beyond its lease with its outcome staged, 11 executing through a gate that has become smaller, 12 throttled at it, 13
 * throttled by a rate limit, 14 cancelled before it ran and noted for the cancellation of its child 15, 16 failed, retried by a person and done, 17 a child of
 * 14 that a person has retried, 18 waiting for any one of its children 19 and 20 beside 21, which an earlier step of it has spawned.
 */
async function healthy(db: Db): Promise<void> {
  await sql
    .raw(`
    INSERT INTO holdfast.project (name) VALUES ('default');
    INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, claimed_by, lease_expires_at, concurrency_key)
      VALUES (1, 'm', 'executing', 1, 'w', now() + interval '1 minute', 'serial');
    INSERT INTO holdfast.instance (project_id, machine, concurrency_key) VALUES (1, 'm', 'serial');
    INSERT INTO holdfast.instance (project_id, machine, status, awaits, await_deadline) VALUES (1, 'm', 'awaiting_signal', '{go}', now() + interval '1 hour');
    INSERT INTO holdfast.instance (project_id, machine, status, awaits, updated_at) VALUES (1, 'm', 'awaiting_signal', '{a,b}', now());
    INSERT INTO holdfast.signal (target_id, name, inserted_at, dedup_key) VALUES (4, 'a', now() - interval '1 minute', 'd'), (4, 'other', now() + interval '1 minute', NULL);
    INSERT INTO holdfast.signal_receipt (target_id, dedup_key) VALUES (4, 'd');
    INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, result, correlation_key, correlation_scope)
      VALUES (1, 'm', 'done', 2, '1', 'order', '{done}');
    INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker)
      VALUES (5, 1, 0, 'next', 'runnable', 'start', 'w'), (5, 2, 0, 'done', 'done', 'end', 'w');
    INSERT INTO holdfast.instance (project_id, machine, status, eligible_at, correlation_key) VALUES (1, 'm', 'scheduled', now() + interval '1 hour', 'k');
    INSERT INTO holdfast.instance (project_id, machine, status, children_pending) VALUES (1, 'm', 'awaiting_children', 1);
    INSERT INTO holdfast.instance (project_id, machine, parent_id, parent_epoch) VALUES (1, 'm', 7, 0);
    INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, error) VALUES (1, 'm', 'failed', 1, '{}');
    INSERT INTO holdfast.outcome_quarantine (instance_id, claim_epoch, outcome, error) VALUES (9, 1, '{}', '{}');
    INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker) VALUES (9, 1, 0, 'fail', 'failed', 'start', 'w');
    INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, claimed_by, lease_expires_at)
      VALUES (1, 'm', 'executing', 1, 'w', now() - interval '1 hour');
    INSERT INTO holdfast.outcome (instance_id, claim_epoch, attempt, kind, worker, from_step, staged_at) VALUES (10, 1, 0, 'done', 'w', 'start', now() + interval '1 minute');
    INSERT INTO holdfast.limit_policy (project_id, kind, name, capacity) VALUES (1, 'gate', 'gate', 1);
    INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, claimed_by, lease_expires_at, concurrency_key, gate_slot)
      VALUES (1, 'm', 'executing', 3, 'w', now() + interval '1 minute', 'gate:a', 1);
    INSERT INTO holdfast.gate_slot (project_id, key, slot, holder_id, holder_epoch) VALUES (1, 'gate:a', 0, NULL, NULL), (1, 'gate:a', 1, 11, 3);
    INSERT INTO holdfast.instance (project_id, machine, status, concurrency_key) VALUES (1, 'm', 'throttled', 'gate:a');
    INSERT INTO holdfast.limit_policy (project_id, kind, name, rate, period_ms, burst, shards) VALUES (1, 'rate', 'rate', 10, 1000, 10, 3);
    INSERT INTO holdfast.rate_bucket (project_id, key, shard, revision, tokens, capacity)
      VALUES (1, 'rate', 0, 1, 0, 3333334), (1, 'rate', 1, 1, 0, 3333333), (1, 'rate', 2, 1, 0, 3333333), (1, 'rate', 3, 0, 9000000, 9000000);
    INSERT INTO holdfast.instance (project_id, machine, status, rate_key, throttled_until) VALUES (1, 'm', 'throttled', 'rate', now() + interval '1 minute');
    INSERT INTO holdfast.instance (project_id, machine, status, cancel_requested_at, error) VALUES (1, 'm', 'cancelled', now(), '{}');
    INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step) VALUES (14, 0, 0, 'cancel', 'cancelled', 'start');
    INSERT INTO holdfast.cascade (parent_id) VALUES (14);
    INSERT INTO holdfast.instance (project_id, machine, parent_id, parent_epoch) VALUES (1, 'm', 14, 0);
    INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch) VALUES (1, 'm', 'done', 2);
    INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker)
      VALUES (16, 1, 0, 'fail', 'failed', 'start', 'w'), (16, 1, 0, 'retry', 'runnable', 'start', NULL), (16, 2, 0, 'done', 'done', 'start', 'w');
    INSERT INTO holdfast.instance (project_id, machine, parent_id) VALUES (1, 'm', 14);
    INSERT INTO holdfast.instance (project_id, machine, status, children_pending, claim_epoch) VALUES (1, 'm', 'awaiting_children', 1, 2);
    INSERT INTO holdfast.instance (project_id, machine, parent_id, parent_epoch) VALUES (1, 'm', 18, 2), (1, 'm', 18, 2), (1, 'm', 18, 1)
  `)
    .execute(db)
}

/** What to do to a healthy database, constraints taken away where they stand against it, so that just this one is violated; or those in `also` with it. */
const violations: Readonly<Record<string, readonly { readonly what: string; readonly how: string; readonly also?: readonly string[] }[]>> =
  {
    E1: [
      {
        what: 'executing without a lease',
        how: `ALTER TABLE holdfast.instance DROP CONSTRAINT instance_executing_is_leased; UPDATE holdfast.instance SET lease_expires_at = NULL WHERE id = 1`,
      },
      {
        what: 'executing without a claimant',
        how: `ALTER TABLE holdfast.instance DROP CONSTRAINT instance_executing_is_claimed; UPDATE holdfast.instance SET claimed_by = NULL WHERE id = 1`,
      },
      {
        what: 'runnable with a lease',
        how: `ALTER TABLE holdfast.instance DROP CONSTRAINT instance_executing_is_leased; UPDATE holdfast.instance SET lease_expires_at = now() WHERE id = 2`,
      },
    ],
    E2: [
      {
        what: 'two executing ones of a serial key',
        how: `DROP INDEX holdfast.instance_concurrency_active; UPDATE holdfast.instance SET status = 'executing', claimed_by = 'w', lease_expires_at = now() + interval '1 minute' WHERE id = 2`,
      },
    ],
    E3: [
      {
        what: 'two live ones of a key',
        how: `DROP INDEX holdfast.instance_correlation; UPDATE holdfast.instance SET correlation_key = 'k' WHERE id = 8`,
      },
      {
        what: 'a live one beside an ended one that kept the key',
        how: `DROP INDEX holdfast.instance_correlation; UPDATE holdfast.instance SET correlation_key = 'order' WHERE id = 8`,
      },
      {
        what: 'a live one that has lost its key',
        how: `ALTER TABLE holdfast.instance ALTER COLUMN correlation_guard DROP EXPRESSION; UPDATE holdfast.instance SET correlation_guard = NULL WHERE id = 6`,
      },
    ],
    E4: [
      {
        what: 'two transitions of a claim',
        how: `INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker) VALUES (5, 1, 0, 'next', 'runnable', 'start', 'w2')`,
      },
    ],
    E5: [
      {
        what: 'an end after the end',
        how: `UPDATE holdfast.instance SET claim_epoch = 3 WHERE id = 5; INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker) VALUES (5, 3, 0, 'done', 'done', 'end', 'w')`,
      },
      {
        what: 'a cancellation after the end',
        how: `INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step) VALUES (5, 2, 0, 'cancel', 'cancelled', 'end')`,
      },
      {
        what: 'two ends for one retry',
        how: `INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step) VALUES (16, 2, 0, 'cancel', 'cancelled', 'start')`,
      },
    ],
    E6: [{ what: 'an outcome that nobody applies', how: `UPDATE holdfast.outcome SET staged_at = now() - interval '11 seconds'` }],
    E7: [
      {
        what: 'a claim that nobody takes back',
        how: `UPDATE holdfast.instance SET lease_expires_at = now() - interval '11 seconds' WHERE id = 1`,
      },
    ],
    E8: [{ what: 'an overdue one', how: `UPDATE holdfast.instance SET eligible_at = now() - interval '11 seconds' WHERE id = 6` }],
    E9: [
      {
        what: 'an await beyond its deadline',
        how: `UPDATE holdfast.instance SET await_deadline = now() - interval '11 seconds' WHERE id = 3`,
      },
      {
        what: 'a join beyond its deadline',
        how: `UPDATE holdfast.instance SET await_deadline = now() - interval '11 seconds' WHERE id = 18`,
      },
    ],
    E10: [
      {
        what: 'a sleeper beside its signal',
        how: `INSERT INTO holdfast.signal (target_id, name, inserted_at) SELECT 3, 'go', updated_at + interval '1 microsecond' FROM holdfast.instance WHERE id = 3`,
      },
      {
        what: 'a pack beside a new signal',
        how: `INSERT INTO holdfast.signal (target_id, name, inserted_at) SELECT 4, 'b', updated_at + interval '1 second' FROM holdfast.instance WHERE id = 4`,
      },
    ],
    E11: [
      { what: 'a child that ended without a word', how: `UPDATE holdfast.instance SET status = 'done' WHERE id = 8` },
      { what: 'a child of another spawn', how: `UPDATE holdfast.instance SET parent_epoch = 1 WHERE id = 8` },
      { what: 'a quorum that cannot be reached', how: `UPDATE holdfast.instance SET children_pending = 3 WHERE id = 18` },
    ],
    E12: [{ what: 'an instance of no project', how: `UPDATE holdfast.instance SET project_id = 99 WHERE id = 3` }],
    E13: [
      {
        what: 'a signal to nobody',
        how: `SET LOCAL session_replication_role = replica; UPDATE holdfast.signal SET target_id = 99 WHERE dedup_key IS NOT NULL`,
      },
      {
        what: 'a receipt of nobody',
        how: `SET LOCAL session_replication_role = replica; UPDATE holdfast.signal_receipt SET target_id = 99`,
      },
    ],
    E14: [
      { what: 'a deadline after the end', how: `UPDATE holdfast.instance SET await_deadline = now() + interval '1 hour' WHERE id = 5` },
      { what: 'names after the end', how: `UPDATE holdfast.instance SET awaits = '{go}' WHERE id = 9` },
      { what: 'children after the end', how: `UPDATE holdfast.instance SET children_pending = 1 WHERE id = 5` },
      { what: 'children after a cancellation', how: `UPDATE holdfast.instance SET children_pending = 1 WHERE id = 14` },
    ],
    E15: [
      {
        what: 'an outcome both applied and quarantined',
        how: `INSERT INTO holdfast.outcome_quarantine (instance_id, claim_epoch, outcome, error) VALUES (5, 2, '{}', '{}')`,
      },
    ],
    E16: [
      {
        what: 'two outcomes of a claim',
        how: `ALTER TABLE holdfast.outcome DROP CONSTRAINT outcome_pkey; INSERT INTO holdfast.outcome (instance_id, claim_epoch, attempt, kind, worker, from_step, staged_at) VALUES (10, 1, 0, 'done', 'w', 'start', now() + interval '1 minute')`,
      },
    ],
    E17: [
      {
        what: 'an outcome from the future',
        how: `INSERT INTO holdfast.outcome (instance_id, claim_epoch, attempt, kind, worker, from_step, staged_at) VALUES (10, 2, 0, 'done', 'w', 'start', now() + interval '1 minute')`,
      },
      {
        what: 'a transition from the future',
        how: `INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step) VALUES (10, 2, 0, 'next', 'runnable', 'start')`,
      },
    ],
    E18: [
      {
        what: 'a park on nothing',
        how: `ALTER TABLE holdfast.instance DROP CONSTRAINT instance_awaiting_names_signals; UPDATE holdfast.instance SET awaits = NULL WHERE id = 3`,
      },
      {
        what: 'a parent of nobody',
        how: `ALTER TABLE holdfast.instance DROP CONSTRAINT instance_awaiting_has_children; UPDATE holdfast.instance SET status = 'awaiting_children' WHERE id = 6`,
      },
    ],
    E19: [
      {
        what: 'a refused outcome whose instance goes on executing',
        how: `INSERT INTO holdfast.outcome_quarantine (instance_id, claim_epoch, outcome, error) VALUES (1, 1, '{}', '{}')`,
      },
    ],
    E20: [
      {
        what: 'one that executes with a slot that nobody made',
        how: `INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, claimed_by, lease_expires_at, concurrency_key, gate_slot)
        VALUES (1, 'm', 'executing', 1, 'w', now() + interval '1 minute', 'gate:b', 0)`,
      },
      {
        what: 'one whose slot was freed under it',
        how: `UPDATE holdfast.gate_slot SET holder_id = NULL, holder_epoch = NULL WHERE slot = 1`,
      },
    ],
    E21: [
      {
        what: 'a slot whose holder has ended and not freed it',
        how: `SET LOCAL session_replication_role = replica;
        UPDATE holdfast.instance SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL WHERE id = 11`,
      },
      {
        what: 'a slot that is held by a claim that is none',
        how: `UPDATE holdfast.gate_slot SET holder_id = 99, holder_epoch = 1 WHERE slot = 0`,
      },
      {
        what: 'a slot of a claim that executes without it',
        how: `UPDATE holdfast.gate_slot SET holder_id = 1, holder_epoch = 1 WHERE slot = 0`,
      },
    ],
    E22: [
      {
        what: 'a claim with two slots',
        how: `UPDATE holdfast.gate_slot SET holder_id = 11, holder_epoch = 3 WHERE slot = 0`,
        also: ['E21'],
      },
    ],
    E23: [
      { what: 'a gap', how: `UPDATE holdfast.gate_slot SET slot = 2 WHERE slot = 0` },
      { what: 'a slot below the first', how: `DELETE FROM holdfast.gate_slot WHERE slot = 0` },
    ],
    E24: [
      {
        what: 'less than nothing',
        how: `ALTER TABLE holdfast.rate_bucket DROP CONSTRAINT rate_bucket_within_capacity; UPDATE holdfast.rate_bucket SET tokens = -1 WHERE shard = 0`,
      },
      {
        what: 'more than the capacity',
        how: `ALTER TABLE holdfast.rate_bucket DROP CONSTRAINT rate_bucket_within_capacity; UPDATE holdfast.rate_bucket SET tokens = capacity + 1 WHERE shard = 3`,
      },
      { what: 'more than the burst', how: `UPDATE holdfast.rate_bucket SET capacity = capacity + 1 WHERE shard = 1` },
      { what: 'a shard that the policy does not have', how: `UPDATE holdfast.rate_bucket SET revision = 1 WHERE shard = 3` },
      { what: 'a bucket of no policy', how: `UPDATE holdfast.rate_bucket SET key = 'other' WHERE shard = 3` },
    ],
    E25: [
      {
        what: 'throttled for nothing',
        how: `ALTER TABLE holdfast.instance DROP CONSTRAINT instance_throttled_has_a_waker; UPDATE holdfast.instance SET throttled_until = NULL WHERE id = 13`,
      },
      {
        what: 'runnable, and waiting for a time',
        how: `ALTER TABLE holdfast.instance DROP CONSTRAINT instance_throttled_until_is_of_throttled; UPDATE holdfast.instance SET throttled_until = now() WHERE id = 2`,
      },
    ],
    E26: [
      {
        what: 'the first of the line of a gate that has room',
        how: `UPDATE holdfast.limit_policy SET capacity = 2, updated_at = now() - interval '1 minute' WHERE kind = 'gate';
        UPDATE holdfast.gate_slot SET changed_at = now() - interval '1 minute';
        UPDATE holdfast.instance SET updated_at = now() - interval '1 minute' WHERE concurrency_key = 'gate:a'`,
      },
      {
        what: 'the first of the line of a serial key that is free',
        how: `UPDATE holdfast.instance SET status = 'throttled', concurrency_key = 'free', updated_at = now() - interval '1 minute' WHERE id = 2`,
      },
    ],
    E27: [
      { what: 'a wait that is over', how: `UPDATE holdfast.instance SET throttled_until = now() - interval '11 seconds' WHERE id = 13` },
    ],
    E28: [{ what: 'a child that nobody will cancel', how: `DELETE FROM holdfast.cascade` }],
  }

test('a healthy database has no violation, not even at rest, where nothing may be under way', async () => {
  expect(await checkInvariants(database.db)).toEqual([])
  expect(await checkInvariants(database.db, { graceMs: 0 })).toEqual([])
})

test('every invariant has a violation here, a number and a text of its own', () => {
  const ids = engineInvariants.map((invariant) => invariant.id)
  expect(Object.keys(violations)).toEqual(ids)
  expect(ids).toEqual(ids.map((_id, index) => `E${index + 1}`))
  for (const id of ids) {
    const statement = allStatements.get(`invariant.${id.toLowerCase()}`)
    expect(statement?.compile(statement.sample).sql).toMatch(/LIMIT 100$/)
  }
})

const cases = engineInvariants.flatMap(({ id, statement, severity }) =>
  (violations[id] ?? []).map(({ what, how, also = [] }) => ({ id, statement, severity, what, how, also })),
)

describe('what no process of ours can do is found when it has been done', () => {
  test.each(cases)('$id: $what', async ({ id, statement, severity, how, also }) => {
    const trx = await database.db.startTransaction().execute()
    try {
      await sql.raw(how).execute(trx)
      const found = await checkInvariants(trx)
      expect(found.map((violation) => violation.id)).toEqual([...also, id])
      expect(found.at(-1)).toMatchObject({ id, statement, severity })
      expect(found.at(-1)?.rows).toHaveLength(1)
    } finally {
      await trx.rollback().execute()
    }
  })
})

test('what has a grace is no violation within it', async () => {
  for (const id of ['E6', 'E7', 'E8', 'E9', 'E27']) {
    const trx = await database.db.startTransaction().execute()
    await sql.raw(violations[id]?.[0]?.how ?? '').execute(trx)
    expect(await checkInvariants(trx, { graceMs: 12_000 }), `${id} within its grace`).toEqual([])
    await trx.rollback().execute()
  }
})

test('shows a hundred rows of a violation and no more', async () => {
  const trx = await database.db.startTransaction().execute()
  await sql`INSERT INTO holdfast.instance (project_id, machine) SELECT 99, 'm' FROM generate_series(1, 250)`.execute(trx)
  const [violation] = await checkInvariants(trx)
  expect(violation).toMatchObject({ id: 'E12' })
  expect(violation?.rows).toHaveLength(100)
  await trx.rollback().execute()
})
