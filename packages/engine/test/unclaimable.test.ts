import { job } from '@holdfast/engine'
import { getQueueDepths } from '@holdfast/queries'
import { metrics } from '@opentelemetry/api'
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics'
import { sql } from 'kysely'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest } from './engine-under-test.ts'

const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE)
// Asked for by hand below; never by its own timer.
const provider = new MeterProvider({ readers: [new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 })] })
// Before any reaper is made: an instrument belongs to the provider that was there then.
beforeAll(() => metrics.setGlobalMeterProvider(provider))
afterAll(async () => {
  metrics.disable()
  await provider.shutdown()
})

async function gauge(): Promise<{ attributes: object; value: unknown }[]> {
  exporter.reset()
  await provider.forceFlush()
  return exporter
    .getMetrics()
    .flatMap(({ scopeMetrics }) => scopeMetrics.flatMap(({ metrics: found }) => found))
    .filter(({ descriptor }) => descriptor.name === 'holdfast.queue.unclaimable')
    .flatMap(({ dataPoints }) => dataPoints.map(({ attributes, value }) => ({ attributes, value })))
}

const noop = job('noop', { input: z.unknown(), run: () => 'ran' })
const v2 = job('noop', { version: 2, input: z.unknown(), run: () => 'v2' })
const unclaimable = async (engine: EngineUnderTest): Promise<number> =>
  (await getQueueDepths(engine.database.db, { projectId: null })).reduce((sum, row) => sum + row.unclaimable, 0)
const silent = (engine: EngineUnderTest, version: number) =>
  sql`UPDATE holdfast.machine SET seen_at = now() - interval '5 minutes' WHERE version = ${version}`.execute(engine.database.db)

test('what no scheduler has had for five minutes is shown in the depth of its queue and in a metric, and no longer when one is back', async () => {
  await using engine = await EngineUnderTest.on([noop])
  const back = engine.another([v2])
  await back.declare()
  for (const version of [1, 2, 2]) await engine.insert('noop', 0, { version })
  engine.reaper.start()
  await engine.reaper.unclaimable()
  expect(await unclaimable(engine)).toBe(0)
  expect(await gauge()).toEqual([])

  await silent(engine, 2)
  await engine.reaper.unclaimable()
  expect(await unclaimable(engine)).toBe(2)
  expect(await gauge()).toEqual([
    { attributes: { 'holdfast.queue': 'default', 'holdfast.machine': 'noop', 'holdfast.version': 2 }, value: 2 },
  ])
  await engine.reaper.unclaimable()
  const warnings = engine.log.filter(({ message }) => message.includes('no scheduler has had'))
  expect(warnings).toHaveLength(1)

  await back.refreshDeclared()
  await engine.reaper.unclaimable()
  expect(await unclaimable(engine)).toBe(0)
  expect(await gauge()).toMatchObject([{ value: 0 }])
})

test('schedulers that share a machine do not all write its row', async () => {
  await using engine = await EngineUnderTest.on([noop])
  const { db } = engine.database
  const version = async () => (await sql<{ xmin: string }>`SELECT xmin::text FROM holdfast.machine`.execute(db)).rows[0]?.xmin
  const declared = await version()
  await engine.scheduler.refreshDeclared()
  expect(await version()).toBe(declared) // seen a moment ago
  await silent(engine, 1)
  await engine.scheduler.refreshDeclared()
  const refreshed = await version()
  expect(refreshed).not.toBe(declared)
  await engine.another([noop]).refreshDeclared()
  expect(await version()).toBe(refreshed)
})
