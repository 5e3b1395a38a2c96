// On a PostgreSQL of its own: the one that the other tests share gives up durability for speed, which doctor rightly minds.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { engineInvariants, scheduleInvariants } from '@holdfast/invariants'
import { expectedVersion, migrate } from '@holdfast/schema'
import { type Postgres, startPostgres } from '@holdfast/testbed/postgres'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest'
import { type ExamineOptions, examine, type Report } from '../src/doctor/examine.ts'
import { type FindingCode, FindingCodes, type Severity } from '../src/doctor/finding.ts'
import { holdfast, holdfastJson } from './run-holdfast.ts'

const MIGRATIONS = join(import.meta.dirname, '../../../migrations')
const TEMPLATE = 'template_doctor'

let server: Postgres
let admin: pg.Client
let databases = 0

beforeAll(async () => {
  // No worker of autovacuum comes while we make a mess, or takes a transaction id while we look whether somebody does.
  const settings = { max_connections: '40', max_prepared_transactions: '5', autovacuum_naptime: '1h' }
  server = await startPostgres({ volatile: false, settings })
  admin = await open('postgres')
  await admin.query(`CREATE DATABASE ${TEMPLATE}`)
  await migrate({ connectionString: server.url(TEMPLATE), folder: MIGRATIONS })
  const client = await open(TEMPLATE)
  await client.query(HEALTHY)
  await client.end()
}, 120_000)
afterAll(async () => {
  await admin.end()
  await server.stop()
})

async function open(database: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: server.url(database) })
  client.on('error', () => {})
  await client.connect()
  return client
}

/** A system in which everything goes its way: one of each kind of instance, every role alive. */
const HEALTHY = `
  INSERT INTO holdfast.project (name) VALUES ('default');
  INSERT INTO holdfast.machine (name, version, queue) VALUES ('m', 1, 'default');
  INSERT INTO holdfast.process (role, host, pid, version, pool_max, heartbeat_at)
    SELECT role, 'h', 1, '0', 2, now() + interval '1 hour' FROM unnest('{api,scheduler,flusher,reaper}'::text[]) role;
  INSERT INTO holdfast.instance (project_id, machine) VALUES (1, 'm');
  INSERT INTO holdfast.instance (project_id, machine, status, eligible_at) VALUES (1, 'm', 'scheduled', now() + interval '1 day');
  INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, claimed_by, lease_expires_at)
    VALUES (1, 'm', 'executing', 1, 'w', now() + interval '1 hour');
  INSERT INTO holdfast.instance (project_id, machine, status, awaits, await_deadline) VALUES (1, 'm', 'awaiting_signal', '{go}', now() + interval '1 day');
  INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, result) VALUES (1, 'm', 'done', 1, '1');
  INSERT INTO holdfast.instance (project_id, machine, status, children_pending) VALUES (1, 'm', 'awaiting_children', 1);
  INSERT INTO holdfast.instance (project_id, machine, parent_id, parent_epoch, status, eligible_at) VALUES (1, 'm', 6, 0, 'scheduled', now() + interval '1 day');`

class Patient implements AsyncDisposable {
  readonly url: string
  readonly client: pg.Client
  readonly name: string
  private constructor(name: string, client: pg.Client) {
    this.name = name
    this.client = client
    this.url = server.url(name)
  }
  static async admit(template = TEMPLATE): Promise<Patient> {
    databases += 1
    const name = `doctor_${databases}`
    await admin.query(`CREATE DATABASE ${name} TEMPLATE ${template} STRATEGY file_copy`)
    return new Patient(name, await open(name))
  }
  examine(more: Partial<ExamineOptions> = {}): Promise<Report> {
    return examine({ databaseUrl: this.url, migrations: MIGRATIONS, graceMs: 10_000, leaseMs: 60_000, timeoutMs: 60_000, ...more })
  }
  /** What this session has done is counted only when it says so; idle ones do within a second, which is no time to wait for. */
  async countNow(): Promise<void> {
    await this.client.query('SELECT pg_stat_force_next_flush()')
    await this.client.query('SELECT 1')
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.client.end()
    await admin.query(`DROP DATABASE ${this.name} WITH (FORCE)`)
  }
}

const findingsOf = (report: Report) =>
  report.sections.flatMap(({ name, findings }) => findings.map((finding) => ({ section: name, ...finding })))
const codesOf = (report: Report): FindingCode[] => findingsOf(report).map(({ code }) => code)

describe('a healthy database', () => {
  test('prints zero for each invariant and ok for each section, and ends with 0', async () => {
    await using patient = await Patient.admit()
    const { code, stdout, stderr } = await holdfast(['doctor'], { env: { HOLDFAST_DATABASE_URL: patient.url } })
    expect({ code, stderr }, stdout).toEqual({ code: 0, stderr: '' })
    for (const { id, statement } of engineInvariants)
      expect(stdout).toMatch(new RegExp(`^ {2}${id} +ok +0 {2}${statement.replaceAll(/[.()]/g, '\\$&')}$`, 'm'))
    const titles = ['schema', 'stuck rows', 'queues', 'processes', 'plans and statistics', 'bloat and vacuum', 'connections', 'settings']
    for (const title of titles) expect(stdout).toMatch(new RegExp(`^ {2}${title} +ok`, 'm'))
    expect(stdout.trimEnd().split('\n').at(-1)).toBe('healthy: 0 invariants violated, 0 errors, 0 warnings')
  })

  test('as a document', async () => {
    await using patient = await Patient.admit()
    const { code, document } = await holdfastJson<Report>(['doctor'], { env: { HOLDFAST_DATABASE_URL: patient.url } })
    expect(code).toBe(0)
    expect(document).toMatchObject({ healthy: true, database: { database: patient.name, login: 'postgres', standby: false } })
    expect(document.invariants.map(({ id, violations, sample }) => ({ id, violations, sample }))).toEqual(
      [...engineInvariants, ...scheduleInvariants].map(({ id }) => ({ id, violations: 0, sample: [] })),
    )
    expect(document.sections.map(({ verdict }) => verdict)).toEqual(document.sections.map(() => 'ok'))
    expect(findingsOf(document)).toEqual([])
  })

  test('is looked at without a write: the sessions could not', async () => {
    await using patient = await Patient.admit()
    const before = await patient.client.query('SELECT pg_current_xact_id_if_assigned(), pg_snapshot_xmax(pg_current_snapshot()) AS next')
    await patient.examine()
    const after = await patient.client.query('SELECT pg_current_xact_id_if_assigned(), pg_snapshot_xmax(pg_current_snapshot()) AS next')
    expect(after.rows).toEqual(before.rows) // no transaction of it has taken an id
  })
})

interface Case {
  readonly code: FindingCode
  readonly severity: Severity
  readonly what: RegExp
  /** What to do to a healthy database, one statement or several at a time. */
  readonly how: readonly string[]
  /** Other findings and invariants that come with it. */
  readonly beside?: readonly string[]
  readonly options?: Partial<ExamineOptions>
}

/** 12,000 more instances, so that the tables count as large. */
const MANY = `INSERT INTO holdfast.instance (project_id, machine, status) SELECT 1, 'm', 'done' FROM generate_series(1, 12000)`
/** Otherwise a worker of autovacuum might tidy up before we look; switched off it is a finding of its own. */
const KEEP_AS_IT_IS = `ALTER TABLE holdfast.instance SET (autovacuum_enabled = false)`
const STALE = `now() - interval '10 minutes'`

const cases: readonly Case[] = [
  {
    code: 'claim_expired',
    severity: 'error',
    what: /^1 claim has outlived the lease.*10 min ago, instances 3$/,
    how: [`UPDATE holdfast.instance SET lease_expires_at = ${STALE} WHERE id = 3`],
    beside: ['E7'],
  },
  {
    code: 'outcome_waiting',
    severity: 'error',
    what: /^1 outcome waits .*10 min ago, instances 3$/,
    how: [
      `INSERT INTO holdfast.outcome (instance_id, claim_epoch, attempt, kind, worker, from_step, staged_at) VALUES (3, 1, 0, 'done', 'w', 's', ${STALE})`,
    ],
    beside: ['E6'],
  },
  {
    code: 'outcome_quarantined',
    severity: 'warning',
    what: /^5 outcomes are in quarantine.*instances 5, 5, 5, …$/,
    how: [
      `INSERT INTO holdfast.outcome_quarantine (instance_id, claim_epoch, outcome, error) SELECT 5, 1, '{}', '{}' FROM generate_series(1, 5)`,
    ],
  },
  {
    code: 'scheduled_overdue',
    severity: 'error',
    what: /^1 scheduled instance is overdue.*instances 2$/,
    how: [`UPDATE holdfast.instance SET eligible_at = ${STALE} WHERE id = 2`],
    beside: ['E8'],
  },
  {
    code: 'await_overdue',
    severity: 'error',
    what: /^1 await is past the deadline.*instances 4$/,
    how: [`UPDATE holdfast.instance SET await_deadline = ${STALE} WHERE id = 4`],
    beside: ['E9'],
  },
  {
    code: 'throttled_overdue',
    severity: 'error',
    what: /^1 throttled instance has not been woken.*instances 1$/,
    how: [`UPDATE holdfast.instance SET status = 'throttled', throttled_until = ${STALE} WHERE id = 1`],
    beside: ['E27'],
  },
  {
    code: 'join_finished',
    severity: 'error',
    what: /^1 parent waits for children that have all ended.*instances 6$/,
    how: [`UPDATE holdfast.instance SET status = 'done' WHERE id = 7`, `UPDATE holdfast.instance SET updated_at = ${STALE} WHERE id = 6`],
    beside: ['E11'],
  },
  {
    code: 'queue_waiting',
    severity: 'warning',
    what: /^the oldest of 1 runnable instance in the queue default has waited 10 min$/,
    how: [`UPDATE holdfast.instance SET eligible_at = ${STALE} WHERE id = 1`],
  },
  {
    code: 'queue_paused',
    severity: 'warning',
    what: /^the queue default is paused with 1 runnable instance/,
    how: [`INSERT INTO holdfast.queue (name, paused_at) VALUES ('default', now())`],
  },
  {
    code: 'unclaimable',
    severity: 'warning',
    what: /^1 runnable instance of m\/2 can be run by nobody.*10 min$/,
    how: [`UPDATE holdfast.instance SET version = 2, eligible_at = ${STALE} WHERE id = 1`],
  },
  {
    code: 'process_silent',
    severity: 'warning',
    what: /^the scheduler on lost \(pid 7\) has been silent for 10 min$/,
    how: [
      `INSERT INTO holdfast.process (role, host, pid, version, pool_max, heartbeat_at) VALUES ('scheduler', 'lost', 7, '0', 2, ${STALE})`,
    ],
  },
  {
    code: 'role_missing',
    severity: 'warning',
    what: /^no reaper says that it lives/,
    how: [`DELETE FROM holdfast.process WHERE role = 'reaper'`],
  },
  {
    code: 'sequential_scan',
    severity: 'error',
    what: /^engine\.reap_expired reads all of instance \(about 12,0\d\d rows\)/,
    how: [MANY, 'DROP INDEX holdfast.instance_lease', 'ANALYZE holdfast.instance'],
  },
  {
    code: 'index_invalid',
    severity: 'error',
    what: /^the index holdfast\.instance_parent of holdfast\.instance is not valid/,
    how: [`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'holdfast.instance_parent'::regclass`],
  },
  {
    code: 'never_analyzed',
    severity: 'warning',
    what: /^instance has about 12,0\d\d rows and was never analysed/,
    how: [KEEP_AS_IT_IS, MANY],
    beside: ['autovacuum_disabled'],
  },
  {
    code: 'statistics_stale',
    severity: 'warning',
    what: /^12,000 rows of instance have changed since it was analysed/,
    how: [KEEP_AS_IT_IS, MANY, 'ANALYZE holdfast.instance', MANY],
    beside: ['autovacuum_disabled'],
    options: { neglectedMs: 0 },
  },
  {
    code: 'dead_rows',
    severity: 'warning',
    what: /^24,000 rows of instance are dead, \d+ % of it \(it was never vacuumed\)/,
    how: [
      KEEP_AS_IT_IS,
      MANY,
      `UPDATE holdfast.instance SET updated_at = now() WHERE id > 7`,
      `UPDATE holdfast.instance SET updated_at = now() WHERE id > 7`,
      'ANALYZE holdfast.instance',
    ],
    beside: ['autovacuum_disabled'],
  },
  {
    code: 'autovacuum_disabled',
    severity: 'error',
    what: /^autovacuum is switched off for signal$/,
    how: ['ALTER TABLE holdfast.signal SET (autovacuum_enabled = off)'],
  },
  {
    code: 'pools_exceed',
    severity: 'warning',
    what: /^5 processes may open up to 518 connections, and the server has \d+$/,
    how: [`INSERT INTO holdfast.process (role, host, pid, version, pool_max, heartbeat_at) VALUES ('api', 'h', 2, '0', 500, now())`],
  },
  {
    code: 'synchronous_commit_off',
    severity: 'warning',
    what: /^synchronous_commit is off for database doctor_\d+:/,
    how: [`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`],
    // The doctor's own session has it too, as any other of this database.
    beside: ['synchronous_commit_off'],
  },
  {
    code: 'isolation_not_read_committed',
    severity: 'error',
    what: /^default_transaction_isolation is repeatable read for database/,
    how: [
      `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$`,
    ],
    beside: ['isolation_not_read_committed'],
  },
  {
    code: 'migration_unknown',
    severity: 'warning',
    what: /^the database has 1 migrations that this code does not know: 9999_future\.sql$/,
    how: [`INSERT INTO holdfast.schema_migration (version, name, sha256, compatibility) VALUES (9999, '9999_future.sql', 'x', 'safe')`],
  },
  {
    code: 'migration_changed',
    severity: 'error',
    what: /^1 applied migrations are not what their files say now: 0001_engine\.sql$/,
    how: [`UPDATE holdfast.schema_migration SET sha256 = 'x' WHERE version = 1`],
  },
]

describe('what is wrong is named, with what to do', () => {
  test.each(cases)('$code: $what', async ({ code, severity, what, how, beside = [], options }) => {
    await using patient = await Patient.admit()
    for (const text of how) {
      await patient.client.query(text)
      await patient.countNow()
    }
    const report = await patient.examine(options)
    const found = findingsOf(report).filter((finding) => finding.code === code && what.test(finding.what))
    expect(found, JSON.stringify(findingsOf(report), null, 1)).toMatchObject([{ severity, remedy: expect.stringMatching(/\S/) as string }])
    const violated = report.invariants.filter(({ violations }) => violations !== 0).map(({ id }) => id)
    const others = [...codesOf(report).filter((each) => each !== code || beside.includes(code)), ...violated]
    expect(new Set(others.filter((each) => each !== code))).toEqual(new Set(beside.filter((each) => each !== code)))
    const bad = severity === 'error' || violated.length > 0 || beside.includes('autovacuum_disabled')
    expect(report.healthy).toBe(!bad)
  })

  test('a breaking migration that this code does not know is an error', async () => {
    await using patient = await Patient.admit()
    await patient.client.query(
      `INSERT INTO holdfast.schema_migration (version, name, sha256, compatibility) VALUES (9999, '9999_future.sql', 'x', 'breaking')`,
    )
    expect(findingsOf(await patient.examine())).toMatchObject([{ code: 'migration_unknown', severity: 'error' }])
  })

  test('migration_unapplied, and not_migrated: nothing else is looked at', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'holdfast-migrations-'))
    cpSync(MIGRATIONS, folder, { recursive: true })
    const next = String((await expectedVersion(MIGRATIONS)) + 1).padStart(4, '0')
    writeFileSync(join(folder, `${next}_next.sql`), '-- safe: nothing\nSELECT 1;\n')
    await using patient = await Patient.admit()
    const report = await patient.examine({ migrations: folder })
    expect(report).toMatchObject({ healthy: false, invariants: [], sections: [{ name: 'schema', verdict: 'error' }] })
    expect(findingsOf(report)).toMatchObject([{ code: 'migration_unapplied', what: expect.stringContaining(`${next}_next.sql`) as string }])
    rmSync(folder, { recursive: true })

    await using empty = await Patient.admit('template1')
    const { code, stdout } = await holdfast(['doctor'], { env: { HOLDFAST_DATABASE_URL: empty.url } })
    expect(code).toBe(1)
    expect(stdout).toMatch(/error not_migrated: this database has no schema of Holdfast\n.*do: .*holdfast migrate/)
  })

  test('a table that changes much is no finding as long as autovacuum comes to it', async () => {
    await using patient = await Patient.admit()
    for (const text of [MANY, 'VACUUM ANALYZE holdfast.instance', MANY, `UPDATE holdfast.instance SET updated_at = now() WHERE id > 7`]) {
      await patient.client.query(text)
      await patient.countNow()
    }
    expect(findingsOf(await patient.examine())).toEqual([])
    expect(codesOf(await patient.examine({ neglectedMs: 0 })).toSorted()).toEqual(['dead_rows', 'statistics_stale'])
  })

  test('long_transaction: one that holds vacuum back', async () => {
    await using patient = await Patient.admit()
    const holder = await open(patient.name)
    await holder.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
    await holder.query('SELECT 1')
    expect(findingsOf(await patient.examine())).toEqual([]) // five minutes are not over yet
    const report = await patient.examine({ longMs: 0 })
    const { rows } = await holder.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')
    expect(findingsOf(report)).toMatchObject([
      { code: 'long_transaction', severity: 'warning', what: expect.stringContaining(`(pid ${rows[0]?.pid})`) as string },
    ])
    await holder.end()
  })

  test('prepared_transaction: one that nobody has finished', async () => {
    await using patient = await Patient.admit()
    await patient.client.query(`BEGIN; INSERT INTO holdfast.project (name) VALUES ('left'); PREPARE TRANSACTION 'forgotten'`)
    const report = await patient.examine({ longMs: 0 })
    expect(findingsOf(report)).toMatchObject([
      { code: 'prepared_transaction', remedy: expect.stringContaining(`ROLLBACK PREPARED 'forgotten'`) as string },
    ])
    await patient.client.query(`ROLLBACK PREPARED 'forgotten'`)
  })

  test('replication_slot: one that nobody reads', async () => {
    await using patient = await Patient.admit()
    await patient.client.query(`SELECT pg_create_physical_replication_slot('unread', true)`)
    const report = await patient.examine()
    await patient.client.query(`SELECT pg_drop_replication_slot('unread')`)
    expect(findingsOf(report)).toMatchObject([
      { code: 'replication_slot', severity: 'warning', what: expect.stringMatching(/unread \(physical\) is read by nobody/) as string },
    ])
  })

  test('connections_used: nearly all of them', async () => {
    await using patient = await Patient.admit()
    const clients = await Promise.all(Array.from({ length: 32 }, () => open(patient.name)))
    const report = await patient.examine()
    await Promise.all(clients.map((client) => client.end()))
    expect(codesOf(report)).toEqual(['connections_used'])
  })

  test.each<[FindingCode, string]>([
    ['autovacuum_off', 'autovacuum'],
    ['track_counts_off', 'track_counts'],
    ['full_page_writes_off', 'full_page_writes'],
    ['fsync_off', 'fsync'],
  ])('%s: a setting of the server', async (code, setting) => {
    await using patient = await Patient.admit()
    const set = async (text: string): Promise<void> => {
      await admin.query(text)
      await admin.query('SELECT pg_reload_conf()')
      // The new value is the postmaster's at once and each session's at its next statement.
      const expected = text.includes('RESET') ? 'on' : 'off'
      await expect
        .poll(async () => (await admin.query<{ value: string }>(`SELECT current_setting('${setting}') AS value`)).rows[0]?.value)
        .toBe(expected)
    }
    await set(`ALTER SYSTEM SET ${setting} = off`)
    try {
      const report = await patient.examine()
      expect(findingsOf(report)).toMatchObject([
        { code, severity: 'error', what: expect.stringMatching(new RegExp(`^${setting} is off: `)) as string },
      ])
      expect(report.healthy).toBe(false)
    } finally {
      await set(`ALTER SYSTEM RESET ${setting}`)
    }
  })

  test('an invariant: its count, three of its rows, and the exit code', async () => {
    await using patient = await Patient.admit()
    await patient.client.query(
      `INSERT INTO holdfast.instance (project_id, machine, status) SELECT 99, 'm', 'done' FROM generate_series(1, 250)`,
    )
    const env = { HOLDFAST_DATABASE_URL: patient.url }
    const { code, document } = await holdfastJson<Report>(['doctor'], { env })
    expect(code).toBe(1)
    const violated = document.invariants.filter(({ violations }) => violations !== 0)
    expect(violated).toMatchObject([{ id: 'E12', severity: 'broken', violations: 100 }])
    expect(violated[0]?.sample).toHaveLength(3)
    const { stdout } = await holdfast(['doctor'], { env })
    expect(stdout).toMatch(
      /^ {2}E12 +broken +100\+ {2}Every instance belongs to a project\.\n( +\{"id":"\d+","project_id":"99"\}\n){3} {2}E13/m,
    )
    expect(stdout).toMatch(/^NOT HEALTHY: 1 invariant violated, 0 errors, 0 warnings$/m)
  })
})

describe('who may look', () => {
  test('a login that may read everything sees all but the plans, and says so', async () => {
    await using patient = await Patient.admit()
    await patient.client.query('CREATE ROLE reader LOGIN IN ROLE pg_read_all_data, pg_monitor')
    try {
      const report = await patient.examine({ databaseUrl: patient.url.replace('postgres@', 'reader@') })
      expect(report.healthy).toBe(true)
      expect(findingsOf(report)).toMatchObject([{ section: 'plans', code: 'not_permitted', severity: 'info' }])
    } finally {
      await patient.client.query('DROP ROLE reader')
    }
  })

  test('a login that may not is told so, and nothing is called healthy', async () => {
    await using patient = await Patient.admit()
    await patient.client.query('CREATE ROLE stranger LOGIN')
    try {
      const databaseUrl = patient.url.replace('postgres@', 'stranger@')
      const { code, document } = await holdfastJson<Report>(['doctor'], { env: { HOLDFAST_DATABASE_URL: databaseUrl } })
      expect(code).toBe(1)
      expect(document.healthy).toBe(false)
      expect(document.invariants).toEqual([])
      expect(codesOf(document)).toEqual(['not_permitted'])
    } finally {
      await patient.client.query('DROP ROLE stranger')
    }
  })

  test('a statement that takes too long is a finding, and the others go on', async () => {
    await using patient = await Patient.admit()
    // Whoever holds the table keeps every look at it waiting until its time is over.
    const holder = await open(patient.name)
    await holder.query('BEGIN; LOCK TABLE holdfast.outcome IN ACCESS EXCLUSIVE MODE')
    const report = await patient.examine({ timeoutMs: 200 })
    await holder.end()
    expect(report.healthy).toBe(false)
    expect(new Set(codesOf(report))).toEqual(new Set(['took_too_long']))
    const unknown = report.invariants.filter(({ violations }) => violations === null).map(({ id }) => id)
    expect(unknown).toContain('E6')
    expect(report.invariants.find(({ id }) => id === 'E1')).toMatchObject({ violations: 0 })
  })
})

test('on the volatile server of the other tests it minds what makes it fast', async () => {
  const url = Object.assign(new URL(inject('postgresUrl')), { pathname: `/${inject('postgresTemplate')}` }).href
  const { code, document } = await holdfastJson<Report>(['doctor'], { env: { HOLDFAST_DATABASE_URL: url } })
  // An existing server may be a durable one.
  const volatile = codesOf(document).includes('fsync_off')
  expect(code).toBe(volatile ? 1 : 0)
})

test('every finding has a test here, and a line in docs/operations/doctor.md', () => {
  const page = readFileSync(join(MIGRATIONS, '../docs/operations/doctor.md'), 'utf8')
  const told = new Set(
    [...page.matchAll(/^\| \w+ \| (`.*?`) \|/gm)].flatMap(([, codes = '']) => [...codes.matchAll(/`(\w+)`/g)].map(([, code = '']) => code)),
  )
  expect([...told].toSorted()).toEqual([...FindingCodes].toSorted())
  const elsewhere: FindingCode[] = [
    'not_migrated',
    'migration_unapplied',
    'long_transaction',
    'prepared_transaction',
    'replication_slot',
    'connections_used',
    'autovacuum_off',
    'track_counts_off',
    'full_page_writes_off',
    'fsync_off',
    'not_permitted',
    'took_too_long',
  ]
  expect([...cases.map(({ code }) => code), ...elsewhere].toSorted()).toEqual([...FindingCodes].toSorted())
})
