// What the SQL functions are for beyond their parity with the API: callers with a role of their own, triggers, messages, hints.
import { Channels, Limits, type ProjectId, SqlStates } from '@holdfast/contracts'
import { declareMachines, findOccupants, putRateLimit, setProjectSuspended } from '@holdfast/queries'
import { DatabaseRoles } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { EngineRows, newProject, present, untilBlocked } from './engine-rows.ts'

/** Roles belong to the cluster, which other files share. */
const run = crypto.randomUUID().slice(0, 8)
/** A member of holdfast_enqueue, one of holdfast_sql that has a project, one that inherits from that, and one that may do nothing. */
const [everywhere, shop, web, nobody] = ['everywhere', 'shop', 'web', 'nobody'].map((name) => `sqlfn_${name}_${run}`) as [
  string,
  string,
  string,
  string,
]

let database: TestDatabase
let shopId: ProjectId
const clients = new Map<string, pg.Client>()
beforeAll(async () => {
  database = await testDatabase()
  shopId = await newProject(database.db, 'shop')
  await newProject(database.db, 'other')
  await sql
    .raw(`CREATE ROLE ${everywhere} LOGIN IN ROLE holdfast_enqueue;
      CREATE ROLE ${shop} LOGIN IN ROLE holdfast_sql;
      CREATE ROLE ${web} LOGIN IN ROLE ${shop};
      CREATE ROLE ${nobody} LOGIN;
      INSERT INTO holdfast.project_role (project_id, role_name) VALUES (${shopId}, '${shop}')`)
    .execute(database.db)
  for (const role of [everywhere, shop, web, nobody]) {
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    await client.query(`SET SESSION AUTHORIZATION ${role}`) // as its login would be, whatever logins the server lets in
    clients.set(role, client)
  }
})
afterAll(async () => {
  await Promise.all([...clients.values()].map((client) => client.end()))
  await sql
    .raw(`DROP OWNED BY ${everywhere}, ${shop}, ${web}, ${nobody}; DROP ROLE ${everywhere}, ${web}, ${shop}, ${nobody}`)
    .execute(database.db)
  await database[Symbol.asyncDispose]()
})
beforeEach(async () => {
  for (const table of ['signal', 'signal_receipt', 'instance', 'machine'])
    await sql`DELETE FROM ${sql.table(`holdfast.${table}`)}`.execute(database.db)
})

const as = (role: string) => present(clients.get(role))
/** What a driver of any language has in hand: the fields of the error. */
const refusal = async (role: string, text: string, values: unknown[] = []): Promise<pg.DatabaseError> => {
  try {
    await as(role).query(text, values)
  } catch (error) {
    return error as pg.DatabaseError
  }
  throw new Error(`was not refused: ${text}`)
}
const stored = async (): Promise<string[]> =>
  (await sql<{ machine: string }>`SELECT machine FROM holdfast.instance ORDER BY id`.execute(database.db)).rows.map(
    ({ machine }) => machine,
  )

const calls = {
  enqueue: (project: string) => `SELECT * FROM holdfast.enqueue('${project}', 'm', correlation_key => 'k')`,
  enqueue_many: (project: string) => `SELECT * FROM holdfast.enqueue_many('${project}', '[{"machine": "m", "correlation_key": "k"}]')`,
  signal: (project: string) => `SELECT * FROM holdfast.signal('${project}', 'go', correlation_key => 'k')`,
}

describe('who may call', () => {
  test.each([everywhere, shop, web])('%s enqueues and signals, with no right on any table of its own', async (role) => {
    const { rows } = await as(role).query<{ id: string; created: boolean }>(calls.enqueue('shop'))
    expect(rows).toEqual([{ id: expect.stringMatching(/^\d+$/), created: true }])
    expect((await as(role).query(calls.enqueue_many('shop'))).rows).toEqual([{ place: 0, id: rows[0]?.id, created: false }])
    expect((await as(role).query(calls.signal('shop'))).rows).toEqual([{ delivered: true, duplicate: false }])
    const of = await sql<{
      n: number
    }>`SELECT count(*)::integer AS n FROM information_schema.role_table_grants WHERE grantee = ${role}`.execute(database.db)
    expect(of.rows).toEqual([{ n: 0 }])
  })

  test.each([shop, web])('%s reads and writes no table', async (role) => {
    for (const table of ['instance', 'signal', 'project', 'project_role', 'machine', 'limit_policy']) {
      expect((await refusal(role, `SELECT FROM holdfast.${table}`)).code, `read ${table}`).toBe('42501')
      expect((await refusal(role, `DELETE FROM holdfast.${table}`)).code, `delete from ${table}`).toBe('42501')
    }
    expect((await refusal(role, `INSERT INTO holdfast.instance (project_id, machine) VALUES (1, 'm')`)).code).toBe('42501')
  })

  test.each(Object.keys(calls) as (keyof typeof calls)[])('%s is refused to everybody else (42501)', async (name) => {
    expect((await refusal(nobody, calls[name]('shop'))).code).toBe('42501')
    for (const role of Object.values(DatabaseRoles)) {
      await as(nobody).query(`RESET SESSION AUTHORIZATION; SET ROLE ${role}`)
      expect((await refusal(nobody, calls[name]('shop'))).code, role).toBe('42501')
      await as(nobody).query(`RESET ROLE; SET SESSION AUTHORIZATION ${nobody}`)
    }
  })

  test('what the functions are made of is for nobody to call', async () => {
    const inside = {
      writable_project: `('shop')`,
      refuse_json: `('{}', 'x', 'HF400')`,
      insert_instances: `(1, NULL, '{m}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false)`,
    }
    for (const role of [everywhere, shop])
      for (const [name, args] of Object.entries(inside))
        expect((await refusal(role, `SELECT holdfast.${name}${args}`)).code, name).toBe('42501')
  })

  test('a function or table that the caller puts before ours is not used', async () => {
    const client = as(everywhere)
    await client.query(`CREATE TEMP TABLE instance (id bigint); CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;
      SET search_path = pg_temp, pg_catalog`)
    try {
      await client.query(calls.enqueue('shop'))
      const { rows } = await sql<{ old: boolean }>`SELECT eligible_at < now() - interval '1 day' AS old FROM holdfast.instance`.execute(
        database.db,
      )
      expect(rows).toEqual([{ old: false }])
    } finally {
      await client.query('RESET search_path')
    }
  })
})

describe('into which project', () => {
  test('a role of holdfast_sql: into its own, and what it is told does not show which others there are', async () => {
    for (const call of Object.values(calls)) {
      const [other, missing] = [await refusal(web, call('other')), await refusal(web, call('missing'))]
      expect([other.code, missing.code]).toEqual([SqlStates.forbidden, SqlStates.forbidden])
      expect(other.message.replace('other', 'missing')).toBe(missing.message)
      expect(other.hint).toContain('holdfast.project_role')
    }
  })

  test('a role of holdfast_enqueue: into each that there is', async () => {
    await as(everywhere).query(calls.enqueue('other'))
    const missing = await refusal(everywhere, calls.enqueue('missing'))
    expect([missing.code, missing.message]).toEqual([SqlStates.not_found, `there is no project 'missing'`])
    expect((await refusal(everywhere, `SELECT holdfast.enqueue(NULL, 'm')`)).code).toBe(SqlStates.not_found)
  })

  test('the rights are those of the login, also where it has switched to another role', async () => {
    await as(nobody).query(`RESET SESSION AUTHORIZATION; GRANT ${shop} TO ${nobody}; SET SESSION AUTHORIZATION ${nobody}; SET ROLE ${shop}`)
    try {
      await as(nobody).query(calls.enqueue('shop'))
      expect((await refusal(nobody, calls.enqueue('other'))).code).toBe(SqlStates.forbidden)
    } finally {
      await as(nobody).query(`RESET SESSION AUTHORIZATION; REVOKE ${shop} FROM ${nobody}; SET SESSION AUTHORIZATION ${nobody}`)
    }
  })

  test('a signal reaches an instance of its project only, by id as by key', async () => {
    const { rows } = await as(everywhere).query<{ id: string }>(calls.enqueue('other'))
    for (const target of [`id => ${rows[0]?.id}`, `correlation_key => 'k'`])
      expect((await refusal(web, `SELECT holdfast.signal('shop', 'go', ${target})`)).code).toBe(SqlStates.not_found)
  })

  test('a suspended project takes nothing in', async () => {
    await setProjectSuspended(database.db, { name: 'other', suspended: true })
    try {
      const suspended = await refusal(everywhere, calls.enqueue('other'))
      expect([suspended.code, suspended.message]).toEqual([SqlStates.forbidden, `project 'other' is suspended`])
    } finally {
      await setProjectSuspended(database.db, { name: 'other', suspended: false })
    }
  })
})

describe('refusals say what to do', () => {
  test.each<[string, string, string, RegExp, RegExp]>([
    [
      'invalid_instance',
      `SELECT holdfast.enqueue('shop', '', priority => 40000)`,
      'HF400',
      /^machine: expected .*; priority: expected -32768 to 32767$/,
      /Nothing was/,
    ],
    [
      'invalid_instance',
      `SELECT holdfast.enqueue('shop', 'm', delay => '1 s', eligible_at => now())`,
      'HF400',
      /delay or eligible_at/,
      /Nothing was/,
    ],
    ['invalid_instance', `SELECT holdfast.enqueue('shop', 'm', delay => '-1 s')`, 'HF400', /^delay: expected 0 to 100 years$/, /./],
    ['invalid_instance', `SELECT holdfast.enqueue('shop', 'm', eligible_at => 'infinity')`, 'HF400', /^eligible_at: /, /./],
    ['invalid_instance', `SELECT holdfast.enqueue('shop', 'm', rate_weight => 2)`, 'HF400', /^rate_weight: needs a rate_limit/, /./],
    ['invalid_instance', `SELECT holdfast.enqueue('shop', 'm', correlation_scope => '{done,NULL}')`, 'HF400', /^correlation_scope: /, /./],
    [
      'invalid_instance',
      `SELECT holdfast.enqueue('shop', 'm', '1e400')`,
      'HF400',
      /^state has a number that is too large for a double$/,
      /text/,
    ],
    [
      'invalid_instance',
      `SELECT holdfast.enqueue_many('shop', '[{"machine":"m"},{"machine":"m","prio":1}]')`,
      'HF400',
      /^instances\.1\.prio: there is no such field$/,
      /POST/,
    ],
    [
      'invalid_instance',
      `SELECT holdfast.enqueue_many('shop', '[{"machine":"m"},{"machine":"m","queue":""}]')`,
      'HF400',
      /^instances\.1\.queue: /,
      /./,
    ],
    ['invalid_instance', `SELECT holdfast.enqueue_many('shop', '{"machine":"m"}')`, 'HF400', /expected a JSON array/, /./],
    [
      'invalid_instance',
      `SELECT holdfast.enqueue_many('shop', (SELECT jsonb_agg('{"machine":"m"}'::jsonb) FROM generate_series(1, 10001)))`,
      'HF400',
      /at most 10000/,
      /./,
    ],
    [
      'invalid_instance',
      `SELECT holdfast.enqueue_many('shop', '[{"machine":"m","rate_limit":{"name":"a:b"}}]')`,
      'HF400',
      /without a colon/,
      /./,
    ],
    [
      'invalid_limit',
      `SELECT holdfast.enqueue('shop', 'm', rate_limit => 'post:x')`,
      'HF420',
      /no such rate limit.*post:x/,
      /PUT \/v1\/limits/,
    ],
    [
      'payload_too_large',
      `SELECT holdfast.enqueue('shop', 'm', to_jsonb(repeat('x', 524287)))`,
      'HF413',
      /^state is 524289 bytes of JSON; at most 524288/,
      /store its address/,
    ],
    ['payload_too_large', `SELECT holdfast.enqueue('shop', 'm', to_jsonb(repeat('x', 2000000)))`, 'HF413', /^state is 2000002 bytes/, /./],
    ['invalid_signal', `SELECT holdfast.signal('shop', 'go')`, 'HF410', /exactly one of id and correlation_key/, /not stored/],
    ['not_found', `SELECT holdfast.signal('shop', 'go', id => 1)`, 'HF404', /^there is no live instance 1 in project 'shop'/, /missing_ok/],
  ])('%s: %s', async (code, text, state, message, hint) => {
    expect(SqlStates[code as keyof typeof SqlStates]).toBe(state)
    const refused = await refusal(shop, text)
    expect(refused.code).toBe(state)
    expect(refused.message).toMatch(message)
    expect(refused.hint).toMatch(hint)
    expect(await stored()).toEqual([])
  })

  test('unknown_machine names the declared ones, some of them where they are many', async () => {
    const machines = Array.from({ length: 30 }, (_, index) => ({
      name: `m${String(index).padStart(2, '0')}`,
      version: 1,
      queue: 'q',
      maxReclaims: 5,
    }))
    await declareMachines(database.db, { machines })
    const refused = await refusal(shop, `SELECT holdfast.enqueue('shop', 'm7')`)
    expect([refused.code, refused.message]).toEqual([
      SqlStates.unknown_machine,
      'no scheduler has declared m7 (in that version); nothing was inserted',
    ])
    expect(refused.hint).toContain('m00/1, m01/1')
    expect(refused.hint).not.toContain('m20')
  })

  test('a refusal can be caught, and the transaction goes on', async () => {
    await as(shop).query(`DO $$ BEGIN
      PERFORM holdfast.signal('shop', 'go', correlation_key => 'nobody');
    EXCEPTION WHEN SQLSTATE 'HF404' THEN
      PERFORM holdfast.enqueue('shop', 'instead');
    END $$`)
    expect(await stored()).toEqual(['instead'])
    const { rows } = await as(shop).query(`SELECT * FROM holdfast.signal('shop', 'go', correlation_key => 'nobody', missing_ok => true)`)
    expect(rows).toEqual([{ delivered: false, duplicate: false }])
  })
})

test('what is null was not given, except for a state; an empty batch is nothing to do', async () => {
  await putRateLimit(database.db, { projectId: shopId, name: 'mail', rate: 1, periodMs: 1_000, burst: 1, shards: 1 })
  await as(shop).query(`SELECT holdfast.enqueue_many('shop', '[{
    "machine": "m", "version": null, "queue": null, "priority": null, "delay_ms": null, "eligible_at": null, "correlation_key": null, "correlation_scope": null,
    "concurrency_key": null, "rate_limit": null, "input": null}, {"machine": "m", "rate_limit": {"name": "mail", "partition": null, "weight": null}}]')`)
  await as(shop).query(`SELECT holdfast.enqueue('shop', 'm', NULL, priority => NULL, correlation_scope => NULL, notify => NULL)`)
  const { rows } = await sql`SELECT state, queue, priority, version, rate_key, rate_weight FROM holdfast.instance ORDER BY id`.execute(
    database.db,
  )
  const common = { queue: 'default', priority: 0, version: 1, rate_weight: 1 }
  expect(rows).toEqual([
    { ...common, state: null, rate_key: null },
    { ...common, state: {}, rate_key: 'mail' },
    { ...common, state: {}, rate_key: null },
  ])
  for (const nothing of ['NULL', `'[]'`])
    expect((await as(shop).query(`SELECT * FROM holdfast.enqueue_many('shop', ${nothing})`)).rows).toEqual([])
})

test('a traceparent is kept; what is none is left out, as a header would be', async () => {
  const given = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  const [{ id }] = (await as(shop).query<{ id: string }>(`SELECT id FROM holdfast.enqueue('shop', 'm', traceparent => $1)`, [given]))
    .rows as [{ id: string }]
  await as(shop).query(
    `SELECT holdfast.enqueue('shop', 'm', traceparent => 'x'), holdfast.signal('shop', 'go', id => $1, traceparent => $2)`,
    [id, given],
  )
  await as(shop).query(`SELECT holdfast.enqueue_many('shop', '[{"machine":"m"}]', traceparent => $1)`, [given])
  const { rows } =
    await sql`SELECT ARRAY(SELECT traceparent FROM holdfast.instance ORDER BY id) AS instances, ARRAY(SELECT traceparent FROM holdfast.signal) AS signals`.execute(
      database.db,
    )
  expect(rows).toEqual([{ instances: [given, null, given], signals: [given] }])
})

test(`${Limits.batchInstances} at once, half of them with keys that are occupied`, async () => {
  const batch = (many: number) =>
    `SELECT count(*) FILTER (WHERE created)::integer AS created, count(DISTINCT id)::integer AS ids FROM holdfast.enqueue_many('shop',
      (SELECT jsonb_agg(jsonb_build_object('machine', 'm', 'correlation_key', 'k' || n)) FROM generate_series(1, ${many}) n))`
  expect((await as(shop).query(batch(Limits.batchInstances / 2))).rows).toEqual([{ created: 5_000, ids: 5_000 }])
  expect((await as(shop).query(batch(Limits.batchInstances))).rows).toEqual([{ created: 5_000, ids: 10_000 }])
})

describe('triggers', () => {
  beforeAll(async () => {
    await sql
      .raw(`CREATE SCHEMA app;
      CREATE TABLE app.orders (id integer PRIMARY KEY, email text, paid boolean NOT NULL DEFAULT false);
      CREATE FUNCTION app.start_checkout() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM holdfast.enqueue('shop', 'checkout', jsonb_build_object('order', NEW.id), correlation_key => 'order-' || NEW.id);
        RETURN NULL;
      END $$;
      CREATE TRIGGER start_checkout AFTER INSERT ON app.orders FOR EACH ROW EXECUTE FUNCTION app.start_checkout();
      CREATE FUNCTION app.tell_paid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM holdfast.signal('shop', 'payment_confirmed', jsonb_build_object('amount', 5), correlation_key => 'order-' || NEW.id, missing_ok => true);
        RETURN NULL;
      END $$;
      CREATE TRIGGER tell_paid AFTER UPDATE OF paid ON app.orders FOR EACH ROW WHEN (NEW.paid) EXECUTE FUNCTION app.tell_paid();
      CREATE TABLE app.mails (address text);
      CREATE FUNCTION app.send_mails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM holdfast.enqueue_many('shop', (SELECT jsonb_agg(jsonb_build_object('machine', 'send-email', 'input', jsonb_build_object('to', n.address))) FROM new_rows n));
        RETURN NULL;
      END $$;
      CREATE TRIGGER send_mails AFTER INSERT ON app.mails REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION app.send_mails();
      GRANT USAGE ON SCHEMA app TO ${shop}, ${nobody};
      GRANT SELECT, INSERT, UPDATE ON app.orders, app.mails TO ${shop}, ${nobody}`)
      .execute(database.db)
  })
  const orders = async () =>
    (await sql<{ id: number }>`SELECT id FROM app.orders ORDER BY id`.execute(database.db)).rows.map(({ id }) => id)

  test('a row of the user and its job are committed together', async () => {
    await as(web).query('INSERT INTO app.orders (id) VALUES (7)')
    const { rows } = await sql`SELECT machine, state, correlation_key, status FROM holdfast.instance`.execute(database.db)
    expect(rows).toEqual([{ machine: 'checkout', state: { order: 7 }, correlation_key: 'order-7', status: 'runnable' }])
    await as(web).query('UPDATE app.orders SET paid = true WHERE id = 7')
    const signals = await sql`SELECT name, payload FROM holdfast.signal`.execute(database.db)
    expect(signals.rows).toEqual([{ name: 'payment_confirmed', payload: { amount: 5 } }])
  })

  test('and rolled back together', async () => {
    await as(web).query('BEGIN; INSERT INTO app.orders (id) VALUES (8); UPDATE app.orders SET paid = true WHERE id = 8; ROLLBACK')
    expect([await stored(), await orders()]).toEqual([[], [7]])
    // A later statement of the transaction that fails takes both back as well.
    expect((await refusal(web, 'BEGIN; INSERT INTO app.orders (id) VALUES (9); INSERT INTO app.orders (id) VALUES (9); COMMIT')).code).toBe(
      '23505',
    )
    await as(web).query('ROLLBACK')
    expect([await stored(), await orders()]).toEqual([[], [7]])
  })

  test('a job that is refused keeps the row out', async () => {
    expect((await refusal(nobody, 'INSERT INTO app.orders (id) VALUES (10)')).code).toBe('42501')
    await declareMachines(database.db, { machines: [{ name: 'other', version: 1, queue: 'q', maxReclaims: 5 }] })
    expect((await refusal(web, 'INSERT INTO app.orders (id) VALUES (10)')).code).toBe(SqlStates.unknown_machine)
    expect(await orders()).toEqual([7])
  })

  test('a trigger of the statement: one batch for all its rows, and none for none', async () => {
    await as(web).query(`INSERT INTO app.mails SELECT 'user' || n || '@example.com' FROM generate_series(1, 100) n`)
    expect(await stored()).toHaveLength(100)
    await as(web).query(`INSERT INTO app.mails SELECT 'x' WHERE false`)
    expect(await stored()).toHaveLength(100)
  })
})

describe('hints', () => {
  test('none without notify; with it the queues that have something to run, and when the first delayed one is due', async () => {
    const listener = new pg.Client({ connectionString: database.url })
    await listener.connect()
    const heard: string[] = []
    listener.on('notification', ({ channel, payload }) => heard.push(`${channel} ${payload ?? ''}`))
    await listener.query(`LISTEN ${Channels.runnable}; LISTEN ${Channels.timer}; LISTEN test_end`)
    const hintsOf = async (text: string): Promise<string[]> => {
      heard.length = 0
      await as(shop).query(text)
      await as(shop).query(`NOTIFY test_end`)
      await expect.poll(() => heard.some((each) => each.startsWith('test_end'))).toBe(true)
      return heard.filter((each) => !each.startsWith('test_end')).toSorted()
    }
    try {
      await sql`INSERT INTO holdfast.instance (project_id, machine, queue, correlation_key, status, awaits) VALUES
        (${shopId}::bigint, 'm', 'mail', 'waits', 'awaiting_signal', '{go}')`.execute(database.db)
      expect(await hintsOf(`SELECT holdfast.enqueue('shop', 'm'), holdfast.enqueue_many('shop', '[{"machine":"m"}]')`)).toEqual([])
      expect(await hintsOf(`SELECT holdfast.signal('shop', 'other', correlation_key => 'waits', notify => true)`)).toEqual([])
      expect(await hintsOf(`SELECT holdfast.signal('shop', 'go', correlation_key => 'waits', notify => true)`)).toEqual([
        'holdfast_runnable mail',
      ])
      const batch = `[{"machine":"m","queue":"a"},{"machine":"m","queue":"a"},{"machine":"m","queue":"b"},{"machine":"m","queue":"c","delay_ms":90000},{"machine":"m","delay_ms":60000}]`
      expect(await hintsOf(`SELECT holdfast.enqueue_many('shop', '${batch}', notify => true)`)).toEqual([
        'holdfast_runnable a',
        'holdfast_runnable b',
        'holdfast_timer 60000',
      ])
      expect(await hintsOf(`SELECT holdfast.enqueue('shop', 'm', delay => '1 min', notify => true)`)).toEqual(['holdfast_timer 60000'])
    } finally {
      await listener.end()
    }
  })
})

describe('keys that are being taken', () => {
  test('the one that waited finds the occupant that was committed meanwhile, or the key free', async () => {
    await using rows = await EngineRows.open()
    const insert = () =>
      sql<{ id: string; created: boolean }>`/* test.call */ SELECT * FROM holdfast.enqueue('default', 'm', correlation_key => 'k')`.execute(
        rows.db,
      )
    for (const end of ['commit', 'rollback'] as const) {
      const first = await rows.db.startTransaction().execute()
      const [taken] = (await sql<{ id: string }>`SELECT id FROM holdfast.enqueue('default', 'm', correlation_key => 'k')`.execute(first))
        .rows
      const second = insert()
      await untilBlocked(rows.db, 'test.call')
      await first[end]().execute()
      expect((await second).rows).toEqual([
        end === 'commit' ? { id: taken?.id, created: false } : { id: expect.any(String), created: true },
      ])
      expect(await findOccupants(rows.db, { projectId: rows.projectId, correlationKeys: ['k'] })).toHaveLength(1)
      await sql`DELETE FROM holdfast.instance`.execute(rows.db)
    }
  })

  test('a key that changes hands at every look ends as instance_conflict, and nothing is inserted', async () => {
    await using rows = await EngineRows.open()
    await sql
      .raw(`INSERT INTO holdfast.instance (project_id, machine, correlation_key) VALUES (${rows.projectId}, 'm', 'k');
      -- The key is taken when it is inserted and free when it is looked up, as if its occupant had ended in between, and taken again after that.
      CREATE FUNCTION public.never_yours() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
      CREATE TRIGGER never_yours BEFORE INSERT ON holdfast.instance FOR EACH ROW WHEN (NEW.correlation_key = 'free') EXECUTE FUNCTION public.never_yours()`)
      .execute(rows.db)
    const batch = '[{"machine":"m"},{"machine":"m","correlation_key":"free"}]'
    await expect(sql`SELECT holdfast.enqueue_many('default', ${batch}::jsonb)`.execute(rows.db)).rejects.toMatchObject({
      code: SqlStates.instance_conflict,
    })
    expect(await rows.count('instance')).toBe(1)
  })
})

test('a session whose plans were made on empty tables walks over none of them once they have grown', async () => {
  await using rows = await EngineRows.open()
  const client = new pg.Client({ connectionString: rows.database.url }) // without the settings of the engine's sessions
  await client.connect()
  const each = [
    `SELECT holdfast.enqueue('default', 'm', correlation_key => 'k1')`,
    `SELECT holdfast.enqueue_many('default', '[{"machine":"m","correlation_key":"k2"},{"machine":"m"}]')`,
    `SELECT holdfast.signal('default', 'go', correlation_key => 'k1', dedup_key => 'd')`,
    `SELECT holdfast.signal('default', 'go', id => (SELECT min(id) FROM holdfast.instance))`,
  ]
  try {
    for (let call = 0; call < 8; call += 1) for (const text of each) await client.query(text) // past the five that are planned anew
    await sql`INSERT INTO holdfast.instance (project_id, machine, correlation_key) SELECT ${rows.projectId}::bigint, 'm', 'grown-' || n FROM generate_series(1, 20000) n`.execute(
      rows.db,
    )
    await client.query('BEGIN')
    for (const text of each) await client.query(text)
    const scanned = await client.query(
      `SELECT relname, seq_tup_read::integer AS read FROM pg_stat_xact_user_tables WHERE schemaname = 'holdfast' AND seq_tup_read > 100`,
    )
    expect(scanned.rows).toEqual([])
  } finally {
    await client.end()
  }
})
