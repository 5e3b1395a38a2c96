// That the benchmarks run, at sizes that say nothing about speed: every system, every trial, every kind of row and of limit.
import type { ProjectId } from '@holdfast/contracts'
import { claim, createProject } from '@holdfast/queries'
import { testDatabase } from '@holdfast/testbed'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { listOf, numberOf } from './arguments.ts'
import { BenchServer, open } from './bench-server.ts'
import { benchBlocking } from './blocking-bench.ts'
import { benchEngine } from './engine-bench.ts'
import { AHEAD, PARKED, underLimits } from './limited-jobs.ts'
import { judge, linesOf, ratioOf, type Sample } from './summary.ts'
import { median, percentile } from './trials.ts'

const TINY = { jobs: 20, machines: 4, samples: 2, warmUp: 5, settleMs: 0, runs: 1 }

// All at once: they mostly wait, for processes to start and to stop.
describe.concurrent('trials', { timeout: 180_000 }, () => {
  let server: BenchServer
  beforeAll(async () => {
    // Its speed is not what is tested.
    server = await BenchServer.start({ shared_buffers: '32MB', fsync: 'off', synchronous_commit: 'off' })
  })
  afterAll(() => server[Symbol.asyncDispose]())

  test.each([
    ['holdfast-staged', 'holdfast-staged'],
    ['graphile', 'graphile-worker'],
    ['pgboss', 'pg-boss'],
    ['dbos', 'dbos'],
  ])('steps of %s', async (only, name) => {
    const result = await benchEngine(server, { ...TINY, only: [only], trials: ['steps'] })
    expect(result.failed).toEqual([])
    expect(result.figures.find(({ figure, system }) => figure === 'steps' && system === name)?.median).toBeGreaterThan(0)
  })

  test('what cannot be measured is skipped, and says why', async ({ expect }) => {
    const result = await benchEngine(server, { ...TINY, only: ['absurd'], trials: ['steps'] })
    expect(result.skipped).toEqual({ absurd: expect.stringContaining('--absurd-sql FILE') })
  })

  test('drain and idle', async ({ expect }) => {
    const result = await benchEngine(server, { ...TINY, only: ['raw', 'graphile'], trials: ['drain', 'idle'] })
    expect(result.failed).toEqual([])
    const of = (system: string) => result.figures.filter((line) => line.system === system).map(({ figure }) => figure)
    const drained = ['drain', 'enqueue', 'wal_enqueue', 'wal_drain', 'tx_drain']
    expect(of('raw-sql')).toEqual(expect.arrayContaining(drained))
    expect(of('graphile-worker')).toEqual(expect.arrayContaining([...drained, 'idle_p50', 'idle_p99']))
    expect(result.ratios).toEqual([])
    expect(JSON.parse(JSON.stringify(result))).toEqual(result)
  })

  test('a name that does not exist is refused before anything is measured', async ({ expect }) => {
    await expect(benchEngine(server, { ...TINY, only: ['graphile', 'river'], trials: ['drain'] })).rejects.toThrow('nothing is named river')
  })

  test('blocking: starts behind parked rows, and a drain under a gate', async ({ expect }) => {
    const result = await benchBlocking(server, {
      ...TINY,
      parts: ['latency', 'drain'],
      flush: 'direct',
      only: ['by a serial key', 'gate of 5000'],
      ahead: 50,
    })
    expect(result.failed).toEqual([])
    expect(result.latencies).toMatchObject([{ ahead: 'blocked by a serial key', rows: 50 }])
    expect(result.latencies[0]?.settled_ms).toBeGreaterThan(0)
    expect(result.ratios.map(({ system }) => system)).toEqual(['holdfast-direct gate of 5000'])
  })
})

describe('rows and limits', () => {
  const inProject = async (work: (database: Awaited<ReturnType<typeof testDatabase>>, projectId: ProjectId) => Promise<void>) => {
    await using database = await testDatabase()
    const [project] = await createProject(database.db, { name: 'default' })
    await work(database, project?.id ?? ('' as ProjectId))
  }

  test.each(AHEAD)('rows $name never execute, and no claim looks at them twice', async (kind) => {
    await inProject(async ({ db, url }, projectId) => {
      await using client = await open(url)
      await kind.prepare(client, projectId)
      await kind.insert(client, projectId, 10)
      const looked = await claim(db, { queue: 'default', limit: 100, worker: 'w', leaseMs: 60_000, machines: ['noop/1'] })
      expect(looked.map(({ status }) => status)).toEqual(kind.runnable ? Array(10).fill('throttled') : [])
      expect((await client.query(PARKED)).rows).toEqual([{ ok: true }])
    })
  })

  test.each(Object.entries(underLimits(20)))('jobs under %s can all be claimed in their turn', async (_name, under) => {
    await inProject(async ({ db, url }, projectId) => {
      await using client = await open(url)
      await under.declare?.(client, projectId)
      const fields = Array.from({ length: 20 }, (_, n) => under.fields(n))
      await client.query(
        `INSERT INTO holdfast.instance (project_id, machine, concurrency_key, rate_key)
        SELECT $1, 'noop', c, r FROM unnest($2::text[], $3::text[]) AS f (c, r)`,
        [projectId, fields.map(({ concurrencyKey }) => concurrencyKey ?? null), fields.map(({ rateKey }) => rateKey ?? null)],
      )
      const looked = await claim(db, { queue: 'default', limit: 100, worker: 'w', leaseMs: 60_000, machines: ['noop/1'] })
      const keys = new Set(fields.map(({ concurrencyKey }) => concurrencyKey))
      // A serial key lets one through at a time; a gate and a rate limit of these sizes let all.
      const expected = keys.size > 1 ? keys.size : 20
      expect(looked.filter(({ status }) => status === 'executing')).toHaveLength(expected)
    })
  })
})

describe('summary', () => {
  const samples = (system: string, ...values: number[]): Sample[] =>
    values.map((value, index) => ({ run: index + 1, figure: 'drain', system, value }))

  test('the middle one, and the smallest that covers a share', () => {
    expect([median([3, 1, 2]), median([4, 1, 2, 3]), median([])]).toEqual([2, 2.5, Number.NaN])
    const hundred = Array.from({ length: 100 }, (_, index) => index + 1)
    expect([percentile(hundred, 0.5), percentile(hundred, 0.99), percentile([7], 0.99)]).toEqual([50, 99, 7])
  })

  test('ratios are taken run by run: a machine that gets slower takes both along, and a run without one of them does not count', () => {
    const all = [...samples('ours', 100, 50, 10), ...samples('theirs', 50, 25)]
    expect(ratioOf(all, 'drain', 'ours', 'theirs')).toMatchObject({ median: 2, runs: [2, 2] })
    expect(ratioOf(all, 'drain', 'ours', 'nobody')).toBeUndefined()
    expect(linesOf(all).map((line) => line.median)).toEqual([50, 37.5])
  })

  test('a goal is met, missed, or left out where nothing was measured for it', () => {
    const all = [...samples('ours', 9), ...samples('theirs', 10)]
    const goal = { goal: 'as fast', figure: 'drain', system: 'ours' } as const
    expect(judge([{ ...goal, to: 'theirs', atLeast: 0.9 }], all)).toMatchObject([{ got: 0.9, met: true }])
    expect(judge([{ ...goal, to: 'theirs', atLeast: 1 }], all)).toMatchObject([{ met: false }])
    expect(judge([{ ...goal, atMost: 8 }], all)).toMatchObject([{ got: 9, met: false }])
    expect(judge([{ ...goal, to: 'nobody', atLeast: 1 }], all)).toEqual([])
  })
})

test('arguments say what they take', () => {
  expect(listOf('--trials', 'drain, idle', ['drain', 'steps', 'idle'])).toEqual(['drain', 'idle'])
  expect(() => listOf('--trials', 'drian', ['drain', 'steps'])).toThrow(
    '--trials takes drain, steps, separated by commas; "drian" is none of them',
  )
  expect(numberOf('--runs', '3')).toBe(3)
  for (const text of ['0', '1.5', 'many']) expect(() => numberOf('--runs', text)).toThrow('--runs takes a whole number')
})
