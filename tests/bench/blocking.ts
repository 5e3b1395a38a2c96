// npm run bench:blocking -- [--json] [--runs 3] [--parts latency,drain] [--flush staged] [--only gate,serial] [--ahead 100000] [--jobs 20000]: see docs/benchmarks.md.
import { parseArgs } from 'node:util'
import { listOf, numberOf } from './arguments.ts'
import { BenchServer } from './bench-server.ts'
import { benchBlocking } from './blocking-bench.ts'
import { goalTable, table } from './summary.ts'
import { FULL } from './trials.ts'

const { values } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    runs: { type: 'string', default: '3' },
    parts: { type: 'string', default: 'latency,drain' },
    flush: { type: 'string', default: 'staged' },
    only: { type: 'string' },
    ahead: { type: 'string', default: '100000' },
    samples: { type: 'string', default: '500' },
    jobs: { type: 'string', default: String(FULL.jobs) },
  },
})

await using server = (await BenchServer.start()).stopOnSignals()
const flush = values.flush === 'direct' ? 'direct' : 'staged'
listOf('--flush', values.flush, ['staged', 'direct'])
const result = await benchBlocking(server, {
  ...FULL,
  parts: listOf('--parts', values.parts, ['latency', 'drain']),
  flush,
  ...(values.only === undefined ? {} : { only: values.only.split(',') }),
  runs: numberOf('--runs', values.runs),
  ahead: numberOf('--ahead', values.ahead),
  samples: numberOf('--samples', values.samples),
  jobs: numberOf('--jobs', values.jobs),
  progress: (text) => void process.stderr.write(`${text}\n`),
})
if (result.failed.length > 0) process.exitCode = 1
process.stdout.write(
  values.json
    ? `${JSON.stringify(result)}\n`
    : [
        table(
          ['start in ms behind rows', 'p50 alone', 'p99 alone', 'p50 behind', 'p99 behind', 'p99 ratio', 'settled', 'meanwhile', ''],
          result.latencies.map((line) => [
            `${line.rows} ${line.ahead}`,
            line.p50_alone,
            line.p99_alone,
            line.p50_behind,
            line.p99_behind,
            `${line.p99_ratio} (${line.p99_ratios.join(' ')})`,
            line.settled_ms ?? 'never',
            line.start_while_settling_ms,
            line.met ? 'met' : 'MISSED',
          ]),
        ),
        table(
          ['figure', 'system', 'median', 'unit', 'runs'],
          result.figures.map(({ figure, system, median, unit, runs }) => [figure, system, median, unit, runs.join(' ')]),
        ),
        goalTable(result.goals),
        '',
      ].join('\n\n'),
)
